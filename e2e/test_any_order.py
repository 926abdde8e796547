"""A job applied before the ConfigMap with its code, and deleted while it runs."""

from kube import ROOT, Kubectl, documents, eventually

LABELLED = "pods,secrets,configmaps,services,rayclusters"


def test_a_job_applied_before_its_code_says_so_then_runs_and_leaves_nothing_when_deleted_while_running(
    kubectl: Kubectl,
) -> None:
    code, job = documents(ROOT / "manifests" / "samples" / "addition-jsonl.yaml")
    job["spec"].update(episodes=1000)
    kubectl.apply(job)
    eventually(
        "the message names the missing ConfigMap",
        lambda: "addition-rewards" in kubectl.status("addition-jsonl").get("message", ""),
        30,
    )
    kubectl.apply(code)
    eventually("an episode is trained", lambda: kubectl.status("addition-jsonl").get("episode"), 240)
    assert kubectl.status("addition-jsonl")["phase"] == "Running"
    kubectl.run("delete", "rlhfjob", "addition-jsonl", "--timeout=60s")
    eventually(
        "nothing with the job's label is left",
        lambda: not kubectl.items(LABELLED, "rlhf.dev/job=addition-jsonl"),
        60,
    )
