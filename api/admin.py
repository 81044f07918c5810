"""The operator's side, on a listener of its own: what the workers do, and a new look at the model repository.

Everything needs the admin key; whatever is not listed here does not exist.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from api import auth, replies, timestamps
from api.app import problem_of
from api.body import Receive
from api.problems import Problem
from api.query import parse
from api.replies import Reply, Scope, Send
from api.services import Services
from api.views import encode
from jobs.fleet import WorkerInfo
from jobs.ids import new_id

WORKERS = ("GET", "/admin/v1/workers")
RELOAD = ("POST", "/admin/v1/models/reload")
_METHODS = {path: method for method, path in (WORKERS, RELOAD)}


def create_admin_app(services: Services) -> "AdminApp":
    return AdminApp(services)


class AdminApp:
    """One ASGI application. A reload may take as long as a model takes to load, so it has a thread to itself."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="admin")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, send)
        elif scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self._pool.shutdown(wait=False, cancel_futures=True)
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _http(self, scope: Scope, send: Send) -> None:
        request_id = new_id("req")
        try:
            reply = await self._reply(scope)
        except Exception as error:
            reply = replies.of_problem(problem_of(error, request_id), scope["path"], request_id)
        await reply.send(scope, send, request_id)

    async def _reply(self, scope: Scope) -> Reply:
        authorization = dict(scope["headers"]).get(b"authorization")
        if not auth.is_admin(authorization, self._services.admin_key_digest):
            raise Problem("unauthenticated", "Send the admin key: Authorization: Bearer …")
        asked = (scope["method"], scope["path"])
        if asked in (WORKERS, RELOAD):
            parse(scope["query_string"])
        if asked == WORKERS:
            return Reply(200, encode({"data": [_worker(worker) for worker in self._services.fleet.workers()]}))
        if asked == RELOAD:
            loop = asyncio.get_running_loop()
            outcome = await loop.run_in_executor(self._pool, self._services.fleet.reload)
            return Reply(200, encode({"data": dict(outcome)}))
        allowed = _METHODS.get(scope["path"])
        if allowed is not None:
            detail = f"{scope['method']} is not allowed here; {allowed} is."
            raise Problem("method_not_allowed", detail, headers=(("allow", allowed),))
        raise Problem("not_found", "There is nothing at this address.")


def _worker(worker: WorkerInfo) -> dict[str, object]:
    return {
        "incarnation": worker.incarnation,
        "name": worker.name,
        "pid": worker.pid,
        "started_at": timestamps.show(worker.started_at),
        "models": list(worker.models),
        "engines": list(worker.engines),
        "held_items": worker.held_items,
    }
