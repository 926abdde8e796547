"""A reward endpoint for tests."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web


class Judge:
    """A server in a thread that scores a completion by its length; `script` answers instead, request by request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.under_way, self.most_under_way = 0, 0
        self.seconds = 0.0
        self.script: list[Callable[[], web.Response | None]] = []
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        assert self._started.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_post("/score", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/score"
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.Response:
        self.times.append(time.monotonic())
        self.headers.append(dict(request.headers))
        asked = await request.json()
        self.requests.append(asked)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            scripted = self.script.pop(0)() if self.script else None
            if scripted is not None:
                return scripted
            await asyncio.sleep(self.seconds)
            return web.json_response({"rewards": [len(completion) for completion in asked["completions"]]})
        finally:
            self.under_way -= 1
