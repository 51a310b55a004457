"""The HTTP server: routes, limits, errors. Every answer but the page and the metrics is JSON; nothing in a request is a path."""

import asyncio
import contextlib
import dataclasses
import functools
import hmac
import json
import logging
import time
from http import HTTPStatus

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
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


def json_response(content: dict, status: int = 200, **headers: str) -> Response:
    return Response(json.dumps(content, allow_nan=False), status, headers, "application/json")


def refusal(status: int, why: str) -> Response:
    """An error as the OpenAI protocol and vLLM have it. The connection ends: of this request more may be on its way."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = {"connection": "close"} | ({"www-authenticate": "Bearer"} if status == 401 else {})
    headers |= {"retry-after": "1"} if status == 429 else {}
    return json_response({"error": {"message": why, "type": kind, "code": status}}, status, **headers)


class PatientProtocol(AutoHTTPProtocol):
    """uvicorn's protocol, which waits for ever for headers, as many as come, and for a client to read its answer: here for
    `seconds`. Its own refusals are JSON too."""

    def __init__(self, *args, seconds: float, **more):
        super().__init__(*args, **more)
        self.seconds, self.timer, self.size = seconds, None, 0

    def connection_made(self, transport):
        super().connection_made(transport)
        self.timer = self.loop.call_later(self.seconds, self.cut)

    def data_received(self, data: bytes):
        self.size += len(data)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # the headers are there
            self.stop_timer()
        elif self.size > MOST_HEADERS:
            self.refuse(431, f"the headers have more than {MOST_HEADERS} bytes")
        elif self.timer is None:  # the next request has begun
            self.timer = self.loop.call_later(self.seconds, self.cut)

    def pause_writing(self):
        super().pause_writing()
        self.timer = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self):
        super().resume_writing()
        self.stop_timer()

    def connection_lost(self, exc):
        self.stop_timer()
        super().connection_lost(exc)

    def stop_timer(self):
        if self.timer is not None:
            self.timer.cancel()
        self.timer, self.size = None, 0

    def cut(self):
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
    """What the routes share. `names`: what a client may call the model; `token`: what it must bring, None: nothing."""

    def __init__(
        self, scorer, names: tuple[str, ...], how: str | None, limits, solutions: int, token: str | None, page: bytes
    ):
        self.scorer, self.names, self.limits, self.token = scorer, names, limits, token
        self.how = how or default_aggregator(scorer)
        self.metrics, self.page = Metrics(), page
        self.worker = Worker(scorer, solutions, self.metrics)
        routes = {"/": ("GET", self.show_page), "/health": ("GET", self.health), "/metrics": ("GET", self.show_metrics)}
        routes |= {"/score": ("POST", self.score), "/pooling": ("POST", self.pooling)}
        self.asgi = Starlette(
            routes=[Route(path, self.guarded(path, act), methods=[method]) for path, (method, act) in routes.items()],
            exception_handlers={HTTPException: self.no_route},
        )
        self.asgi.router.redirect_slashes = False

    def guarded(self, path: str, act):
        """The route that answers with what `act` gives, or with a refusal, and counts it. No traceback leaves it."""

        async def endpoint(request: Request) -> Response:
            start = time.perf_counter()
            try:
                self.check_token(path, request)
                response = await act(request)
            except Refused as error:
                response = refusal(error.status, str(error))
                if error.status != 408:
                    await self.drain(request)
            except InputError as error:  # of the format, such as a step that holds its separator
                response = refusal(400, str(error))
            except Exception:
                LOG.exception("POST or GET %s failed", path)
                response = refusal(500, "the server failed; its log says why")
            self.metrics.requests[path, response.status_code] += 1
            self.metrics.seconds.add(time.perf_counter() - start)
            return response

        return endpoint

    async def no_route(self, request: Request, error: HTTPException) -> Response:
        self.metrics.requests["other", error.status_code] += 1
        why = f"{request.method} {request.url.path[:80]!r}: {error.detail}"
        response = refusal(error.status_code, f"{why}; POST /score, /pooling, GET /, /health, /metrics")
        response.headers.update(error.headers or {})
        await self.drain(request)
        return response

    async def drain(self, request: Request):
        """Reads what is left of a refused request: whoever is still writing when the connection ends does not read why."""
        with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):  # the last: nothing is left
            async with asyncio.timeout(self.limits.seconds):
                async for _ in request.stream():
                    pass

    def check_token(self, path: str, request: Request):
        if self.token is None or path in ("/", "/health"):
            return
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):  # takes as long whatever is wrong
            raise Refused(401, "authorization: expected `Bearer` and the server's token")

    async def body(self, request: Request) -> dict:
        """The request's object. What is too long is read to its end, but not kept, so that the client reads why."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        # A page of another site may send a browser's user's text here, but not JSON.
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
        """(the job of the request's body, scored; what else `read` makes of the body)."""
        if self.metrics.waiting >= self.limits.requests:
            why = f"{self.metrics.waiting} requests are being answered, which is the most at a time; try later"
            raise Refused(429, why)
        self.metrics.waiting += 1
        try:
            job, more = read(await self.body(request))
            return await self.worker.score(job), more
        finally:
            self.metrics.waiting -= 1

    async def score(self, request: Request) -> Response:
        job, sizes = await self.scored(request, lambda body: score_job(body, self.how, self.limits))
        return json_response({"model": self.names[0]} | score_answer(job, sizes, self.scorer))

    async def pooling(self, request: Request) -> Response:
        read = lambda body: pooling_job(body, self.scorer, self.names, self.limits)
        job, activated = await self.scored(request, read)
        return json_response(pooling_answer(job, activated, self.scorer, self.names[0]))

    async def health(self, request: Request) -> Response:
        about = {"status": "ok", "model": self.names[0], "verifier": self.scorer.name, "unit": self.scorer.unit}
        about |= {"label_kind": self.scorer.label_kind, "objective": self.scorer.objective, "aggregator": self.how}
        return json_response(about | {"aggregators": list(AGGREGATORS), "limits": dataclasses.asdict(self.limits)})

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
