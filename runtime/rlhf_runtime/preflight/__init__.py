"""What can be told of a job's models before their weights are loaded: whether they fit each other and the pods.

Everything found wrong is permanent: another attempt would find the same.
"""

import logging

# transformers imports torchao for any model, and torch then warns of torchao's own code: nothing for a user to mend.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
