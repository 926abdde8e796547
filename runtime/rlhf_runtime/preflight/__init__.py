"""What is known of a job's models before their weights are loaded: whether they fit each other and the pods.

Everything found wrong is permanent: another attempt would find the same.
"""
