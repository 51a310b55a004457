"""The HTTP server's routes, limits and errors. Answers are JSON except for the page and the metrics."""

import asyncio
import contextlib
import dataclasses
import functools
import hmac
import ipaddress
import logging
import socket
import time
import urllib.parse
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
from prm_jax.serve.worker import Job, Refused, Worker

MOST_HEADERS = 1 << 14  # bytes
TOO_LONG = f"the headers have more than {MOST_HEADERS} bytes"
LOG = logging.getLogger("prm_jax.serve")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'"


def refusal(status: int, why: str) -> Response:
    """An error in the form of the OpenAI protocol and vLLM. The connection closes: more of the request may come."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = {"connection": "close"} | ({"www-authenticate": "Bearer"} if status == 401 else {})
    headers |= {"retry-after": "1"} if status == 429 else {}
    return JSONResponse({"error": {"message": why, "type": kind, "code": status}}, status, headers)


def is_local(header: str, host: str) -> bool:
    """Whether a header Host names what no page of another site can be called: localhost, this machine, `host`, at which
    the server listens, a loopback address, or any address where `host` stands for all."""
    with contextlib.suppress(ValueError):  # no address
        name = urllib.parse.urlsplit(f"//{header}").hostname or ""
        is_named = name in ("localhost", socket.gethostname().lower(), host.lower())
        return is_named or ipaddress.ip_address(name).is_loopback or ipaddress.ip_address(host).is_unspecified
    return False


def peer(client: tuple[str, int] | None) -> str | None:
    """The address by which a client's share is counted: of IPv6 the network of 64 bits, all of which one peer has."""
    with contextlib.suppress(ValueError):  # no IPv6
        address = ipaddress.IPv6Address(client and client[0])
        return str(address.ipv4_mapped or ipaddress.IPv6Network((address.packed[:8] + bytes(8), 64)))
    return client and client[0]


class PatientProtocol(AutoHTTPProtocol):
    """uvicorn's protocol with JSON refusals, which are counted, limits on headers and on the connections of an address,
    a limit of limits.seconds for headers to arrive and for the client to read its answer, and answers for clients that
    end their side after a request."""

    def __init__(self, *args, limits, metrics: Metrics, **more):
        super().__init__(*args, **more)
        self.limits, self.metrics, self.timer, self.size, self.ended = limits, metrics, None, 0, False

    def connection_made(self, transport):
        super().connection_made(transport)
        self.set_timer(self.refuse_late)
        address, most = peer(self.client), self.limits.connections_each
        if [peer(one.client) for one in self.connections].count(address) > most:
            self.refuse(429, f"{most} connections of {address} are open, its share; try later")

    def data_received(self, data: bytes):
        self.size += len(data)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # the headers have arrived
            self.set_timer(None)
        elif self.size > MOST_HEADERS:
            self.refuse(431, TOO_LONG)
        elif self.timer is None:  # the next request has begun
            self.timer = self.loop.call_later(self.limits.seconds, self.refuse_late)

    def pause_writing(self):
        super().pause_writing()
        self.set_timer(self.transport.abort)

    def resume_writing(self):
        super().resume_writing()
        self.set_timer(None)

    def connection_lost(self, exc):
        self.set_timer(None)
        super().connection_lost(exc)

    def eof_received(self) -> bool:
        """Whether the connection stays open, for the answer to a request that has arrived."""
        self.ended = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if self.ended:
            self.probe()
            self.loop.call_later(1, self.probe)
        return self.ended

    def probe(self):
        """Writes what every client ignores. One that has left answers the first with a reset, which the second meets."""
        if not (
            self.cycle.response_started or self.transport.is_closing() or self.scope["http_version"] == "1.0"
        ):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_response_complete(self):
        super().on_response_complete()
        if self.ended and self.cycle.response_complete:  # no pipelined request is left
            self.transport.close()

    def set_timer(self, act):
        """Replaces the timer by one that calls act(), or by none."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer, self.size = act and self.loop.call_later(self.limits.seconds, act), 0

    def refuse_late(self):
        self.refuse(408, f"the headers did not arrive within {self.limits.seconds:g} s")

    def send_400_response(self, msg: str):
        self.refuse(400, msg)

    def refuse(self, status: int, why: str):
        if self.transport.is_closing():
            return
        response = refusal(status, why)
        lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
        lines += [b"%s: %s" % pair for pair in response.raw_headers]
        self.metrics.requests["other", status] += 1
        self.transport.write(b"\r\n".join([*lines, b"", response.body]))
        self.transport.close()


class App:
    """The state of the routes. A client may call the model by any of `names`, and must send `token` if there is one, else
    the name of this machine or `host`, so that no page of another site can ask."""

    def __init__(
        self, scorer, names: tuple[str, ...], aggregator, limits, batch, host: str, token, page: bytes
    ):
        self.scorer, self.names, self.limits, self.host, self.token = scorer, names, limits, host, token
        self.aggregator = aggregator or default_aggregator(scorer)
        self.metrics, self.page = Metrics(), page
        self.worker = Worker(scorer, batch, self.metrics)
        answers = (
            ("GET", "/", self.show_page),
            ("GET", "/health", self.health),
            ("GET", "/metrics", self.show_metrics),
        )
        answers += ("POST", "/score", self.score), ("POST", "/pooling", self.pooling)
        routes = [Route(path, self.guard(path, answer), methods=[method]) for method, path, answer in answers]
        self.routes = Starlette(
            routes=routes, exception_handlers={HTTPException: self.guard("other", self.no_route)}
        )
        self.routes.router.redirect_slashes = False

    async def __call__(self, scope, receive, send):
        """Answers a request as ASGI, or when the time to stop is over says that it is not answered."""
        try:
            await self.routes(scope, receive, send)
        except asyncio.CancelledError:
            self.metrics.requests["other", 503] += 1
            with contextlib.suppress(
                RuntimeError, TimeoutError
            ):  # a part of an answer was sent; nobody reads
                async with asyncio.timeout(0.5):
                    await refusal(503, "the server stopped before it could answer")(scope, receive, send)

    def guard(self, path: str, answer):
        """A function that returns answer(request), or a refusal without a traceback, and counts it."""

        async def endpoint(request: Request, *unrouted) -> Response:
            start = time.perf_counter()
            try:
                self.check(path, request)
                response = await answer(request, *unrouted)
            except Refused as error:
                response = refusal(error.status, str(error))
            except InputError as error:  # such as a step that contains the format's separator
                response = refusal(400, str(error))
            except Exception:
                LOG.exception("POST or GET %s failed", path)
                response = refusal(500, "the server failed; its log says why")
            if response.status_code >= 400 and response.status_code != 408:
                await self.drain(request)
            self.metrics.requests[path, response.status_code] += 1
            self.metrics.seconds.add(time.perf_counter() - start)
            return response

        return endpoint

    async def no_route(self, request: Request, error: HTTPException) -> Response:
        why = f"{request.method} {request.url.path[:80]!r}: {error.detail}"
        response = refusal(error.status_code, f"{why}; POST /score, /pooling, GET /, /health, /metrics")
        response.headers.update(error.headers or {})
        return response

    async def drain(self, request: Request):
        """Reads the rest of a refused request, since a client that is still writing would not see the answer."""
        with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):  # the last: nothing is left
            async with asyncio.timeout(self.limits.seconds):
                async for _ in request.stream():
                    pass

    def check(self, path: str, request: Request):
        """Refuses headers that are too long, and by its token, or without one by the name that it calls, a stranger."""
        lines = (request.scope["raw_path"], request.scope["query_string"]), *request.headers.raw
        if sum(len(name) + len(value) + 4 for name, value in lines) > MOST_HEADERS:  # they came in one piece
            raise Refused(431, TOO_LONG)
        if self.token is None:
            name = request.headers.get("host", "")
            if not is_local(name, self.host):
                expected = (
                    f"localhost, a loopback address or host={self.host}; with PRM_JAX_TOKEN any name will do"
                )
                raise Refused(421, f"the header Host: got {name[:80]!r}, expected {expected}")
        elif path in ("/score", "/pooling", "/metrics"):
            sent = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(sent, f"Bearer {self.token}".encode()):  # in constant time
                raise Refused(401, "authorization: expected `Bearer` and the server's token")

    async def body(self, request: Request) -> dict:
        """The request's JSON object. A body that is too long is read to its end, so that the client sees the answer. As
        many bodies may arrive as requests may wait; the one that takes longest gives its place to the next."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        # Pages of other sites can make a browser send text here, but not JSON.
        if kind != "application/json":
            raise Refused(415, f"content-type: got {kind[:80]!r}, expected 'application/json'")
        size, kept, arriving, waiting = 0, bytearray(), self.metrics.arriving, self.metrics.waiting
        address = peer(request.client)
        try:
            async with asyncio.timeout(self.limits.seconds) as limit:
                arriving[limit] = address
                if [*arriving.values(), *waiting].count(address) > (most := self.limits.requests_each):
                    raise Refused(
                        429, f"{most} requests of {address} are being answered, its share; try later"
                    )
                if len(arriving) > self.limits.requests:
                    oldest = next(iter(arriving))
                    del arriving[oldest]
                    with contextlib.suppress(RuntimeError):  # its time is just over
                        oldest.reschedule(0)
                async for part in request.stream():
                    size += len(part)
                    kept += part if size <= self.limits.body else b""
        except TimeoutError:
            when = (
                f"within {self.limits.seconds:g} s" if limit in arriving else f"before {len(arriving)} others"
            )
            raise Refused(408, f"the body did not arrive {when}: {size} bytes did") from None
        except ClientDisconnect:
            raise Refused(400, f"the body ended after {size} bytes") from None
        finally:
            arriving.pop(limit, None)
        if size > self.limits.body:
            raise Refused(413, f"the body has {size} bytes, expected at most {self.limits.body}")
        if len(waiting) >= self.limits.requests:
            raise Refused(429, f"{len(waiting)} requests are being answered, the most at a time; try later")
        return read_json(bytes(kept))

    async def scored(self, request: Request, read):
        """(scored job, second result) of `read`, which makes a job of the request's body."""
        job, extra = read(await self.body(request))
        answer = self.worker.submit(job)
        watch = asyncio.create_task(drop_if_left(request, job))
        self.metrics.waiting.append(address := peer(request.client))
        try:
            return await answer, extra
        finally:
            self.metrics.waiting.remove(address)
            watch.cancel()

    async def score(self, request: Request) -> Response:
        job, counts = await self.scored(request, lambda body: score_job(body, self.aggregator, self.limits))
        return JSONResponse({"model": self.names[0]} | score_answer(job, counts, self.scorer))

    async def pooling(self, request: Request) -> Response:
        read = functools.partial(pooling_job, scorer=self.scorer, names=self.names, limits=self.limits)
        job, activated = await self.scored(request, read)
        return JSONResponse(pooling_answer(job, activated, self.scorer, self.names[0]))

    async def health(self, request: Request) -> Response:
        scorer, limits = self.scorer, dataclasses.asdict(self.limits)
        state = {"status": "ok", "model": self.names[0], "verifier": scorer.name, "unit": scorer.unit}
        state |= {
            "label_kind": scorer.label_kind,
            "objective": scorer.objective,
            "aggregator": self.aggregator,
        }
        return JSONResponse(state | {"aggregators": list(AGGREGATORS), "limits": limits})

    async def show_metrics(self, request: Request) -> Response:
        stats = self.scorer.stats if isinstance(self.scorer, ModelScorer) else None
        return Response(self.metrics.text(stats), media_type="text/plain; version=0.0.4")

    async def show_page(self, request: Request) -> Response:
        headers = {
            "content-security-policy": POLICY,
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
        }
        return Response(self.page, headers=headers, media_type="text/html")


async def drop_if_left(request: Request, job: Job):
    """Ends a job whose client disconnects, so that it is not scored."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    if not job.answer.done():
        job.rows = ()
        job.answer.set_exception(Refused(499, "the client has left"))


def make_server(app: App, host: str, port: int, stop_seconds: int) -> uvicorn.Server:
    http = functools.partial(PatientProtocol, limits=app.limits, metrics=app.metrics)
    settings = {"http": http, "ws": "none", "lifespan": "off", "access_log": False, "log_level": "warning"}
    settings |= {"server_header": False, "proxy_headers": False, "timeout_keep_alive": 30}
    settings["h11_max_incomplete_event_size"] = (
        1 << 18
    )  # the protocol's own limit comes first, with its reason
    return uvicorn.Server(uvicorn.Config(app, host, port, timeout_graceful_shutdown=stop_seconds, **settings))
