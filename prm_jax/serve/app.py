"""The HTTP server's routes, limits and errors. Answers are JSON except for the page and the metrics."""

import asyncio
import contextlib
import dataclasses
import functools
import hmac
import logging
import time
from http import HTTPStatus

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from prm_jax import InputError
from prm_jax.rerank import AGGREGATORS, default_aggregator
from prm_jax.scoring import ModelScorer
from prm_jax.serve.bodies import pooling_answer, pooling_job, read_json, score_answer, score_job
from prm_jax.serve.metrics import Metrics
from prm_jax.serve.worker import Refused, Worker

MOST_HEADERS = 1 << 14  # bytes
LOG = logging.getLogger("prm_jax.serve")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'"


def refusal(status: int, why: str) -> Response:
    """An error in the form of the OpenAI protocol and vLLM. The connection closes: more of the request may come."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = {"connection": "close"} | ({"www-authenticate": "Bearer"} if status == 401 else {})
    headers |= {"retry-after": "1"} if status == 429 else {}
    return JSONResponse({"error": {"message": why, "type": kind, "code": status}}, status, headers)


class PatientProtocol(AutoHTTPProtocol):
    """uvicorn's protocol with JSON refusals, a limit on headers, and a limit of `seconds` for headers to arrive and for
    the client to read its answer."""

    def __init__(self, *args, seconds: float, **more):
        super().__init__(*args, **more)
        self.seconds, self.timer, self.size = seconds, None, 0

    def connection_made(self, transport):
        super().connection_made(transport)
        self.set_timer(self.refuse_late)

    def data_received(self, data: bytes):
        self.size += len(data)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # the headers have arrived
            self.set_timer(None)
        elif self.size > MOST_HEADERS:
            self.refuse(431, f"the headers have more than {MOST_HEADERS} bytes")
        elif self.timer is None:  # the next request has begun
            self.timer = self.loop.call_later(self.seconds, self.refuse_late)

    def pause_writing(self):
        super().pause_writing()
        self.set_timer(self.transport.abort)

    def resume_writing(self):
        super().resume_writing()
        self.set_timer(None)

    def connection_lost(self, exc):
        self.set_timer(None)
        super().connection_lost(exc)

    def set_timer(self, act):
        """Replaces the timer by one that calls act(), or by none."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer, self.size = act and self.loop.call_later(self.seconds, act), 0

    def refuse_late(self):
        self.refuse(408, f"the headers did not arrive within {self.seconds:g} s")

    def send_400_response(self, msg: str):
        self.refuse(400, msg)

    def refuse(self, status: int, why: str):
        if self.transport.is_closing():
            return
        response = refusal(status, why)
        lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
        lines += [b"%s: %s" % pair for pair in response.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", response.body]))
        self.transport.close()


class App:
    """The state of the routes. A client may call the model by any of `names`, and must send `token` if there is one."""

    def __init__(self, scorer, names: tuple[str, ...], aggregator, limits, solutions: int, token, page: bytes):
        self.scorer, self.names, self.limits, self.token = scorer, names, limits, token
        self.aggregator = aggregator or default_aggregator(scorer)
        self.metrics, self.page = Metrics(), page
        self.worker = Worker(scorer, solutions, self.metrics)
        routes = [self.route("GET", "/", self.show_page), self.route("GET", "/health", self.health)]
        routes += [self.route("GET", "/metrics", self.show_metrics), self.route("POST", "/score", self.score)]
        routes += [self.route("POST", "/pooling", self.pooling)]
        self.asgi = Starlette(routes=routes, exception_handlers={HTTPException: self.no_route})
        self.asgi.router.redirect_slashes = False

    def route(self, method: str, path: str, answer) -> Route:
        """A route that returns answer(request), or a refusal without a traceback, and counts it."""

        async def endpoint(request: Request) -> Response:
            start = time.perf_counter()
            try:
                self.check_token(path, request)
                response = await answer(request)
            except Refused as error:
                response = refusal(error.status, str(error))
                if error.status != 408:
                    await self.drain(request)
            except InputError as error:  # such as a step that contains the format's separator
                response = refusal(400, str(error))
            except Exception:
                LOG.exception("POST or GET %s failed", path)
                response = refusal(500, "the server failed; its log says why")
            self.metrics.requests[path, response.status_code] += 1
            self.metrics.seconds.add(time.perf_counter() - start)
            return response

        return Route(path, endpoint, methods=[method])

    async def no_route(self, request: Request, error: HTTPException) -> Response:
        self.metrics.requests["other", error.status_code] += 1
        why = f"{request.method} {request.url.path[:80]!r}: {error.detail}"
        response = refusal(error.status_code, f"{why}; POST /score, /pooling, GET /, /health, /metrics")
        response.headers.update(error.headers or {})
        await self.drain(request)
        return response

    async def drain(self, request: Request):
        """Reads the rest of a refused request, since a client that is still writing would not see the answer."""
        with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):  # the last: nothing is left
            async with asyncio.timeout(self.limits.seconds):
                async for _ in request.stream():
                    pass

    def check_token(self, path: str, request: Request):
        if self.token is None or path in ("/", "/health"):
            return
        sent = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(sent, f"Bearer {self.token}".encode()):  # in constant time
            raise Refused(401, "authorization: expected `Bearer` and the server's token")

    async def body(self, request: Request) -> dict:
        """The request's JSON object. A body that is too long is read to its end, so that the client sees the answer."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        # Pages of other sites can make a browser send text here, but not JSON.
        if kind != "application/json":
            raise Refused(415, f"content-type: got {kind[:80]!r}, expected 'application/json'")
        size, kept = 0, bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    kept += part if size <= self.limits.body else b""
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.limits.seconds:g} s: {size} bytes did") from None
        except ClientDisconnect:
            raise Refused(400, f"the body ended after {size} bytes") from None
        if size > self.limits.body:
            raise Refused(413, f"the body has {size} bytes, expected at most {self.limits.body}")
        return read_json(bytes(kept))

    async def scored(self, request: Request, read):
        """(scored job, second result) of `read`, which makes a job of the request's body."""
        if self.metrics.waiting >= self.limits.requests:
            raise Refused(429, f"{self.metrics.waiting} requests are being answered, the most at a time; try later")
        self.metrics.waiting += 1
        try:
            job, extra = read(await self.body(request))
            return await self.worker.score(job), extra
        finally:
            self.metrics.waiting -= 1

    async def score(self, request: Request) -> Response:
        job, sizes = await self.scored(request, lambda body: score_job(body, self.aggregator, self.limits))
        return JSONResponse({"model": self.names[0]} | score_answer(job, sizes, self.scorer))

    async def pooling(self, request: Request) -> Response:
        read = functools.partial(pooling_job, scorer=self.scorer, names=self.names, limits=self.limits)
        job, activated = await self.scored(request, read)
        return JSONResponse(pooling_answer(job, activated, self.scorer, self.names[0]))

    async def health(self, request: Request) -> Response:
        scorer, limits = self.scorer, dataclasses.asdict(self.limits)
        state = {"status": "ok", "model": self.names[0], "verifier": scorer.name, "unit": scorer.unit}
        state |= {"label_kind": scorer.label_kind, "objective": scorer.objective, "aggregator": self.aggregator}
        return JSONResponse(state | {"aggregators": list(AGGREGATORS), "limits": limits})

    async def show_metrics(self, request: Request) -> Response:
        stats = self.scorer.stats if isinstance(self.scorer, ModelScorer) else None
        return Response(self.metrics.text(stats), media_type="text/plain; version=0.0.4")

    async def show_page(self, request: Request) -> Response:
        headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "cache-control": "no-store"}
        return Response(self.page, headers=headers, media_type="text/html")


def make_server(app: App, host: str, port: int, stop_seconds: int) -> uvicorn.Server:
    http = functools.partial(PatientProtocol, seconds=app.limits.seconds)
    settings = {"http": http, "ws": "none", "lifespan": "off", "access_log": False, "log_level": "warning"}
    settings |= {"server_header": False, "proxy_headers": False, "timeout_keep_alive": 30}
    return uvicorn.Server(uvicorn.Config(app.asgi, host, port, timeout_graceful_shutdown=stop_seconds, **settings))
