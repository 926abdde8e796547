"""Where URIs lead: files that are here, in object stores, behind HTTP, and on a Hub of two repositories.

S3, Google Cloud Storage and Azure are emulators that speak their protocols: moto, gcp-storage-emulator, Azurite.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import pytest
from azurite import azurite
from rlhf_api.prompts import PromptSource
from rlhf_runtime.data import remote_files
from rlhf_runtime.data.locations import LocationError, file_sizes, local_path
from rlhf_runtime.data.prompt_rows import open_rows
from rlhf_runtime.failures import RunFailure

#: Nothing listens there.
DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no pauses, and none of the variables that whoever runs the tests may have."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("RLHF_CACHE_DIR", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HF_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(remote_files, "_PAUSES", (0.0, 0.0))
    return folder


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def gs_server() -> Iterator[str]:
    from gcp_storage_emulator.server import create_server

    with create_server("127.0.0.1", 0, in_memory=True) as server:
        # It has no public name for the port that the system chose.
        host, port = server._api._httpd.server_address
        yield f"http://{host}:{port}"


@pytest.fixture(scope="module")
def azure_server() -> Iterator[str]:
    with azurite() as address:
        yield address


Put = Callable[[str, str], None]


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Put:
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="prompts")
    return lambda key, content: client.put_object(Bucket="prompts", Key=key, Body=content)


@pytest.fixture
def gs(gs_server: str, monkeypatch: pytest.MonkeyPatch) -> Put:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs_server)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    bucket = json.dumps({"name": "prompts"}).encode()
    with contextlib.suppress(urllib.error.HTTPError):
        # It is there from the second test on.
        urllib.request.urlopen(
            urllib.request.Request(f"{gs_server}/storage/v1/b", bucket, {"Content-Type": "application/json"})
        )

    def put(key: str, content: str) -> None:
        where = f"{gs_server}/upload/storage/v1/b/prompts/o?uploadType=media&name={quote(key, safe='')}"
        urllib.request.urlopen(urllib.request.Request(where, content.encode(), {"Content-Type": "text/plain"}))

    return put


@pytest.fixture
def abfs(azure_server: str, monkeypatch: pytest.MonkeyPatch) -> Put:
    import fsspec

    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_server)
    files = fsspec.filesystem("abfs", skip_instance_cache=True)
    if not files.exists("prompts"):
        files.mkdir("prompts")
    return lambda key, content: files.pipe_file(f"prompts/{key}", content.encode(), overwrite=True)


STORES = ["s3", "gs", pytest.param("abfs", marks=pytest.mark.full)]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> tuple[str, Put]:
    """A scheme, and what writes an object into its bucket `prompts`, which has two files and one in a folder."""
    put = request.getfixturevalue(request.param)
    for name, texts in (("train/a.jsonl", "ab"), ("train/b.jsonl", "c"), ("train/old/c.jsonl", "x"), ("train/n", "x")):
        put(name, "".join(f'{{"prompt": "{text}"}}\n' for text in texts))
    return request.param, put


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize(
    ("path", "texts"),
    [
        pytest.param("train/a.jsonl", ["a", "b"], id="an object"),
        pytest.param("train", ["a", "b", "c"], id="a prefix"),
        pytest.param("train/", ["a", "b", "c"], id="a prefix with its slash"),
        pytest.param("train/b*", ["c"], id="a star"),
    ],
)
def test_prompts_from_an_object_store(store: tuple[str, Put], path: str, texts: list[str]) -> None:
    source = PromptSource(uri=f"{store[0]}://prompts/{path}")
    assert [row.prompt for row in open_rows(source, "prompts")] == texts


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_rows_of_an_object_store_are_named_as_they_are_there(store: tuple[str, Put]) -> None:
    scheme, put = store
    put("train/b.jsonl", '{"prompt": "c"}\n{"prompt": 4}\n')
    with pytest.raises(RunFailure, match=rf"{scheme}://prompts/train/b.jsonl, line 2: key 'prompt': found a number"):
        open_rows(PromptSource(uri=f"{scheme}://prompts/train"), "prompts")


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_an_object_is_fetched_once_until_it_changes(store: tuple[str, Put], cache: Path) -> None:
    scheme, put = store
    uri = f"{scheme}://prompts/train/a.jsonl"
    first = local_path(uri)
    first.write_text("the copy that is here")
    assert local_path(uri).read_text() == "the copy that is here"
    put("train/a.jsonl", '{"prompt": "new"}\n')
    assert local_path(uri).read_text() == '{"prompt": "new"}\n'
    assert file_sizes(f"{scheme}://prompts/train") == {"a.jsonl": 18, "b.jsonl": 16, "n": 16}
    assert list(cache.rglob("*.part")) == []


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_the_files_of_a_folder_come_when_they_are_asked_for(store: tuple[str, Put]) -> None:
    uri = f"{store[0]}://prompts/train"
    folder = local_path(uri, only=("a*",))
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["a.jsonl"]
    assert local_path(uri, only=("b*", "n")) == folder
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["a.jsonl", "b.jsonl", "n"]


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize(
    ("path", "part"),
    [
        pytest.param("prompts/train/z.jsonl", "no file and no folder 'prompts/train/z.jsonl' at", id="no such object"),
        pytest.param("prompts/train/z.jsonl", "://prompts/train/ has a.jsonl, b.jsonl, n, old", id="what is beside it"),
        pytest.param("nothing/a.jsonl", "there is no bucket 'nothing' at", id="no such bucket"),
        pytest.param("prompts/train", "found a.jsonl, b.jsonl, n, expected *.parquet", id="no file of that name"),
    ],
)
def test_what_an_object_store_has_not(store: tuple[str, Put], path: str, part: str) -> None:
    uri = f"{store[0]}://{path}"
    with pytest.raises(LocationError) as error:
        local_path(uri, only=("*.parquet",))
    assert error.value.permanent
    assert str(error.value).startswith(f"{uri}: ")
    assert part in str(error.value)


def test_a_store_whose_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_runtime.data.stores.find_spec", lambda name: None)
    for scheme, package in (("gs", "gcsfs"), ("abfs", "adlfs")):
        with pytest.raises(RunFailure) as error:
            open_rows(PromptSource(uri=f"{scheme}://prompts/a.jsonl"), "prompts")
        assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)
        assert f"the Python package {package} is not installed here" in error.value.message
        assert f"pip install 'rlhfjob[runtime,{scheme}]'" in error.value.message


@pytest.mark.parametrize(
    ("uri", "environment", "permanent", "parts"),
    [
        pytest.param("s3://prompts/train/a.jsonl", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, True,
                     ["no credentials (http://127", "AWS_ACCESS_KEY_ID is not set", "runtime.envFrom"],
                     id="no credentials"),
        pytest.param("s3://prompts/train/a.jsonl", {"AWS_ENDPOINT_URL": DEAD}, False,
                     [f"cannot be read from {DEAD}", "AWS_ENDPOINT_URL is set"],
                     id="an endpoint that does not answer"),
    ],
)  # fmt: skip
def test_what_s3_does_not_give(
    s3: Put, monkeypatch: pytest.MonkeyPatch, uri: str, environment: dict[str, str], permanent: bool, parts: list[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LocationError) as error:
        local_path(uri, only=("*.parquet",))
    assert error.value.permanent == permanent
    for part in [uri, *parts]:
        assert part in str(error.value)
    assert len(str(error.value)) < 700
    assert "secret" not in str(error.value)


def test_what_cannot_be_reached_may_be_there_at_the_next_attempt(s3: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", DEAD)
    with pytest.raises(RunFailure) as error:
        open_rows(PromptSource(uri="s3://prompts/train/a.jsonl"), "evaluation")
    assert (error.value.reason, error.value.permanent) == ("SourceUnreachable", False)
    assert error.value.message.startswith("evaluation.uri: s3://prompts/train/a.jsonl: cannot be read from")


class Answers(BaseHTTPRequestHandler):
    """Gives `server.files` by path: (status, headers, body), and counts what it is asked for."""

    server: Any

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_POST(self) -> None:
        self._answer(with_body=True, said=self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, with_body: bool, said: bytes = b"") -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        files = self.server.files
        found = files(path, self.headers, said) if callable(files) else files.get(path)
        status, headers, body = found or (404, {}, b"")
        if isinstance(status, list):
            status = status.pop(0) if len(status) > 1 else status[0]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def web(files: Any) -> Iterator[Any]:
    """A server of these files; `.url` and what it was `.asked` for."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.files, server.asked = files, []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


ROW = b'{"prompt": "a"}\n'


def test_a_file_behind_http_is_fetched_once_for_all_who_want_it(cache: Path) -> None:
    with web({"/a.jsonl": (200, {"ETag": '"1"'}, ROW)}) as server:
        with ThreadPoolExecutor(6) as pool:
            paths = set(pool.map(local_path, [f"{server.url}/a.jsonl?key=1"] * 6))
        assert [path.read_bytes() for path in paths] == [ROW]
        # Each asks for its version (HEAD); one fetches it.
        assert len(server.asked) == 7
    assert list(cache.rglob("*.part")) == []


@pytest.mark.parametrize(
    ("answer", "permanent", "asked", "part"),
    [
        pytest.param((404, {}, b""), True, 2, "answers 404 Not Found .*, expected the file", id="no such file"),
        pytest.param((403, {}, b""), True, 2, "answers 403", id="not allowed"),
        pytest.param((503, {}, b""), False, 6, "answers 503", id="a server in trouble"),
        pytest.param((429, {}, b""), False, 6, "answers 429", id="too many requests"),
    ],
)
def test_what_a_web_server_answers(answer: Any, permanent: bool, asked: int, part: str) -> None:
    # Each try asks for the head of the file, and then for the file itself.
    with web({"/a.jsonl": answer}) as server:
        with pytest.raises(LocationError, match=part) as error:
            local_path(f"{server.url}/a.jsonl")
        assert (error.value.permanent, len(server.asked)) == (permanent, asked)


def test_a_server_that_has_recovered_is_asked_again() -> None:
    with web({"/a.jsonl": ([503, 503, 200], {}, ROW)}) as server:
        assert local_path(f"{server.url}/a.jsonl").read_bytes() == ROW


def test_a_file_that_arrives_in_part_is_never_taken_for_whole(cache: Path) -> None:
    with web({"/a.jsonl": (200, {"ETag": '"1"', "Content-Length": "1000"}, ROW)}) as server:
        server.RequestHandlerClass.timeout = 1
        with pytest.raises(LocationError) as error:
            local_path(f"{server.url}/a.jsonl")
    assert not error.value.permanent
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


SHA = "a" * 40


def hub(path: str, headers: Any, said: bytes) -> Any:
    """A Hub as its client knows it: a model, a data set that a token opens, nothing else."""
    files = {"config.json": b"{}", "model.safetensors": b"weights", "onnx/model.onnx": b"much"}
    kind, prefix, name = "models", "", "org/tiny"
    if "org/private" in path:
        files = {"data/a.jsonl": ROW, "data/b.jsonl": b'{"prompt": "b"}\n', "data/notes.md": b"", "README.md": b""}
        kind, prefix, name = "datasets", "/datasets", "org/private"
        if headers["Authorization"] != "Bearer token":
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
    api, resolve = f"/api/{kind}/{name}", f"{prefix}/{name}/resolve/{SHA}/"
    entries = [{"type": "file", "path": p, "size": len(content), "oid": "0" * 40} for p, content in files.items()]
    entries += [{"type": "directory", "path": p, "size": 0, "oid": "1" * 40} for p in ("onnx", "data")]
    if path in (api, *(f"{api}/revision/{revision}" for revision in ("main", "v1", SHA))):
        return 200, {}, json.dumps({"id": name, "sha": SHA}).encode()
    if path.startswith(f"{api}/revision/"):
        return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
    if path.startswith(f"{api}/tree/{SHA}"):
        folder = path.removeprefix(f"{api}/tree/{SHA}").lstrip("/")
        found = [entry for entry in entries if str(entry["path"]).rpartition("/")[0] == folder]
        return 200, {}, json.dumps(found).encode()
    if path == f"{api}/paths-info/{SHA}":
        [asked] = parse_qs(said.decode())["paths"]
        return 200, {}, json.dumps([entry for entry in entries if entry["path"] == asked]).encode()
    content = files.get(path.removeprefix(resolve)) if path.startswith(resolve) else None
    if content is None:
        return 404, {"X-Error-Code": "EntryNotFound" if resolve in path else "RepoNotFound"}, b"{}"
    return 200, {"X-Repo-Commit": SHA, "ETag": f'"{zlib.crc32(content):x}"'}, content


#: Its variables are read when the Hub's client is imported: in a process of its own, as in a pod.
ASK = """
import json, sys
from rlhf_runtime.data import remote_files
from rlhf_runtime.data.locations import LocationError, file_sizes, local_path
remote_files._PAUSES = (0.0, 0.0)
for uri in sys.argv[1:]:
    try:
        path = local_path(uri, only=("*.json", "*.jsonl"))
        names = sorted(each.name for each in path.glob('[!.]*')) if path.is_dir() else [path.read_text()]
        print(json.dumps([names, sorted(file_sizes(uri))]))
    except LocationError as error:
        print(json.dumps([error.permanent, str(error)]))
"""


def ask(endpoint: str, home: Path, token: str, *uris: str) -> list[Any]:
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_TOKEN": token}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", ASK, *uris], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_models_and_data_sets_of_a_hub(tmp_path: Path) -> None:
    with web(hub) as server:
        uris = [
            "hf://org/tiny",
            "hf://org/tiny@v1/model.safetensors",
            "hf://datasets/org/private/data",
            "hf://datasets/org/private/data/a.jsonl",
        ]
        found = ask(server.url, tmp_path / "hf", "token", *uris)
        # Only what is asked for comes, and nothing of the folders below.
        assert found == [
            [["config.json"], ["config.json", "model.safetensors"]],
            [["weights"], ["model.safetensors"]],
            [["a.jsonl", "b.jsonl"], ["a.jsonl", "b.jsonl", "notes.md"]],
            [[ROW.decode()], ["a.jsonl"]],
        ]


def test_what_a_hub_does_not_give(tmp_path: Path) -> None:
    cases = {
        "hf://org/none": (True, "there is no such repository that this token may see (http://127.0.0.1"),
        "hf://datasets/org/private": (True, "there is no such repository"),
        "hf://org/tiny@v2": (True, "the repository has no such revision (http://127.0.0.1"),
        "hf://org/tiny/none.json": (True, "there is no file and no folder 'org/tiny@"),
        "hf://org": (True, "expected hf://[datasets/]ORG/NAME[@REVISION][/PATH]"),
        "hf://org/tiny/onnx": (True, "found model.onnx, expected *.json or *.jsonl"),
    }
    with web(hub) as server:
        found = ask(server.url, tmp_path / "hf", "", *cases)
    for (uri, (permanent, part)), (is_permanent, message) in zip(cases.items(), found, strict=True):
        assert (is_permanent, message.startswith(f"{uri}: ")) == (permanent, True), message
        assert part in message
    assert "HF_TOKEN is not set" in found[0][1]
    [(permanent, message)] = ask(DEAD, tmp_path / "hf2", "", "hf://org/tiny")
    assert not permanent
    assert message.startswith(f"hf://org/tiny: cannot be read from {DEAD} (")


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        pytest.param("ftp://host/a.jsonl", "ftp://host/a.jsonl: expected an absolute path, package://", id="scheme"),
        pytest.param("data/a.jsonl", "data/a.jsonl: expected an absolute path", id="a relative path"),
        pytest.param("package://no_such_package/a", "there is no Python package 'no_such_package' here", id="package"),
        pytest.param("package://json.decoder/a", "no Python package 'json.decoder' here", id="a module for a package"),
        pytest.param("package:///a", "there is no Python package '' here", id="a package without a name"),
        pytest.param("/data/\0.jsonl", "expected an absolute path", id="a path that no system has"),
        pytest.param("http://[::1/a.jsonl", r"found the host '\[::1', expected HOST or HOST:PORT", id="half a host"),
        pytest.param("https://:443/a.jsonl", "found the host ':443'", id="no host"),
        pytest.param("http://host:99999/a.jsonl", "found the host 'host:99999'", id="a port that no host has"),
    ],
)
def test_what_names_no_place(uri: str, part: str) -> None:
    with pytest.raises(LocationError, match=part) as error:
        local_path(uri)
    assert error.value.permanent


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLHF_CACHE_DIR", str(tmp_path / "file"))
    with web({"/a.jsonl": (200, {}, ROW)}) as server, pytest.raises(LocationError, match="RLHF_CACHE_DIR names"):
        local_path(f"{server.url}/a.jsonl")
