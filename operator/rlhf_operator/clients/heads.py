"""HTTP to a head, where the user's code runs: it may redirect us nowhere and tell us no more than we can hold."""

import aiohttp

#: Longest answer that is read, bytes: a report of 100 episodes, 2000 pod names and a traceback is far below.
MAX_ANSWER = 4 * 1024 * 1024


def address(ip: str, port: int) -> str:
    """The base URL of something that listens on a head."""
    return f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"


async def text_of(response: aiohttp.ClientResponse) -> str:
    """The body of an answer. Raises ClientPayloadError when it is too long, or a redirect."""
    if 300 <= response.status < 400:
        raise aiohttp.ClientPayloadError(f"{response.status}: found a redirect, expected an answer")
    content = bytearray()
    async for part in response.content.iter_chunked(65536):
        content += part
        if len(content) > MAX_ANSWER:
            raise aiohttp.ClientPayloadError(f"found an answer of more than {MAX_ANSWER} bytes, expected less")
    return content.decode("utf-8", "replace")
