"""sink-http posts every event to a URL, as a CloudEvent in binary mode. A simple sink (docs/plugin-protocol.md): the
host never has two events of one key at it, so all that it is given can be posted side by side. Order, retries, back-off
and dead letters are the host's."""
import functools, json, os, pathlib, queue, re, signal, sys, threading, time, urllib.parse
from concurrent.futures import ThreadPoolExecutor
import grpc, urllib3
from google.protobuf.json_format import MessageToJson
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from relevo.plugin.v1 import event_pb2, plugin_pb2 as plugin, plugin_pb2_grpc, sink_pb2 as sink, sink_pb2_grpc
TRANSIENT, PERMANENT, CONFIG = plugin.ERROR_CLASS_TRANSIENT, plugin.ERROR_CLASS_PERMANENT, plugin.ERROR_CLASS_CONFIG
SCHEMA = pathlib.Path(__file__).with_name("config.schema.json").read_text()
DESCRIPTION = plugin.DescribeResponse(
    name="http", version="1.0.0", kind=plugin.PLUGIN_KIND_SINK, summary="Posts every event to a URL, as a CloudEvent.",
    config_schema=SCHEMA, max_message_bytes=17 << 20)  # an event may have 16 MiB
# The rule of CloudEvents for headers: all but visible ASCII, and space, quote and percent, becomes %XX.
encode = functools.partial(urllib.parse.quote, safe="!#$&'()*+,-./:;<=>?@[\\]^_`{|}~")

class Refusal(Exception):  # class, code and message of a Failure or a Fault: no secrets, no payload
    def fields(self):
        return dict(zip(("class", "code", "message"), self.args))  # Python has no argument that is called class

class Attempt:
    """One stream. One thread reads, some post, gRPC's own sends the answers: a host that reads slowly stops nobody."""
    def __init__(self, requests, context):
        self.requests, self.context, self.answers = requests, context, queue.SimpleQueue()
        self.ending, self.ended_well, self.not_before = threading.Event(), False, 0.0  # the last by Retry-After

    def run(self):
        try:
            self.open(next(self.requests).open)
            self.answers.put(sink.WriteResponse(opened=sink.SinkOpened(keeps_order=False)))
            with ThreadPoolExecutor(self.concurrency) as pool:  # its end waits for all that was submitted
                for request in self.requests:  # which may simply end, too, when the stream breaks off
                    self.ended_well = request.HasField("stop")
                    if self.ended_well: break
                    for n, event in enumerate(request.batch.events):
                        pool.submit(self.publish, request.batch.first_seq + n, event)
                self.ending.set()
            self.answers.put(sink.WriteResponse(stopped=plugin.Stopped()))
        except Refusal as r:
            self.ended_well = True
            self.answers.put(sink.WriteResponse(fault=plugin.Fault(**r.fields())))
        except grpc.RpcError:
            return  # the stream has broken off
        self.answers.put(None)

    def open(self, request):
        config = json.loads(request.config)
        for key in set(config) - set(json.loads(SCHEMA)["properties"]):
            raise Refusal(CONFIG, "config_invalid", f"there is no key {key!r}")
        self.url, self.concurrency = config.get("url", ""), config.get("concurrency", 16)
        if not re.fullmatch(r"https?://[^@/?#\s]+([/?][!-~]*)?", self.url):
            raise Refusal(CONFIG, "config_invalid", "url: no http:// or https:// address, or one with a user in it")
        self.headers = {"Authorization": "Bearer " + config["token"]} if "token" in config else {}
        self.headers |= {"ce-specversion": "1.0", "ce-source": "relevo/" + request.instance.pipeline}
        self.http = urllib3.PoolManager(maxsize=self.concurrency, timeout=config.get("timeout", 10), retries=False)

    def publish(self, seq, event):
        self.ending.wait(max(0, self.not_before - time.monotonic()))
        if not self.context.is_active():
            return  # the event comes again, on another stream
        try:
            if time.monotonic() < self.not_before:
                raise Refusal(TRANSIENT, "paused", "the receiver has asked for a pause")
            self.post(event)
            answer = sink.WriteResponse(ack=sink.SinkAck(ranges=[event_pb2.SeqRange(first=seq, last=seq)]))
        except Exception as e:  # whatever happens, each number ends
            r = e if isinstance(e, Refusal) else Refusal(TRANSIENT, "internal", f"a bug of the sink: {type(e).__name__}")
            answer = sink.WriteResponse(failure=sink.Failure(seq=seq, **r.fields()))
        self.answers.put(answer)

    def post(self, event):
        """Returns when the receiver has confirmed the event, and has said all of it. Otherwise raises Refusal."""
        headers = urllib3.HTTPHeaderDict(self.headers)
        headers["Idempotency-Key"] = headers["ce-id"] = encode(event.id)
        headers["ce-subject"], headers["ce-type"] = encode(event.key), encode(event.type) or "event"  # a type is a must
        headers["Content-Type"] = event.content_type or "application/octet-stream"
        headers["ce-tombstone"] = str(not event.HasField("payload")).lower()  # in HTTP, absent and empty look the same
        for h in event.headers:  # the prefix keeps an event from setting Host or Authorization
            headers.add("Relevo-" + h.name, encode(h.value))
        answer = self.request("POST", event.payload, headers)
        status, said, wait = answer.status, f"the receiver answers {answer.status}", answer.headers.get("Retry-After", "")
        if 200 <= status < 300:
            return
        if status in (429, 503) and re.fullmatch("[0-9]{1,9}", wait):
            self.not_before = time.monotonic() + min(int(wait), 60)
        if status in (408, 409, 425, 429) or status >= 500:  # 409: an earlier request with this id is still at work
            raise Refusal(TRANSIENT, "try_again", said)
        about_us = status < 400 or status in (401, 402, 403, 404, 405, 407, 410)  # not about the event: never discard it
        raise Refusal(CONFIG, "endpoint_refuses", said) if about_us else Refusal(PERMANENT, "refused", said)

    def request(self, method, body, headers):
        try:
            return self.http.request(method, self.url, body, headers=headers, redirect=False)
        except urllib3.exceptions.HTTPError as e:  # nobody knows whether the event has arrived: never an ack
            raise Refusal(TRANSIENT, "unreachable", f"{method}: {type(e).__name__}")
        except ValueError:  # before anything was sent
            raise Refusal(PERMANENT, "header_invalid", "the event has a header that HTTP can't carry")

class Plugin(plugin_pb2_grpc.PluginServiceServicer, sink_pb2_grpc.SinkServiceServicer, grpc.ServerInterceptor):
    """Python's gRPC does not tell of connections. The first call, and a stream that breaks off, stand for them."""
    called = newest = None
    Describe = lambda self, request, context: DESCRIPTION

    def intercept_service(self, continuation, call):
        self.called = True
        return continuation(call)

    def Check(self, request, context):
        attempt, findings = Attempt(None, context), []
        try:
            attempt.open(request)
            attempt.request("HEAD", None, attempt.headers)  # which changes nothing there; any answer will do
        except Refusal as r:
            findings.append(plugin.Finding(severity=plugin.SEVERITY_ERROR, code=r.args[1], message=r.args[2]))
        return plugin.CheckResponse(findings=findings)

    def Write(self, requests, context):
        attempt = self.newest = Attempt(requests, context)
        context.add_callback(lambda: self.ended(attempt))
        threading.Thread(target=attempt.run).start()
        yield from iter(attempt.answers.get, None)

    def ended(self, attempt):
        attempt.ending.set()
        attempt.answers.put(None)
        if not attempt.ended_well:  # the host is gone, unless it opens another stream at once
            threading.Timer(3, lambda: self.newest is attempt and os._exit(0)).start()

if sys.argv[1:] == ["describe"]:
    sys.exit(print(MessageToJson(DESCRIPTION)))
if os.environ.get("RELEVO_PLUGIN") != "d5a3":
    sys.exit("This is a plugin of Relevo: relevo starts it.")
for s in (signal.SIGTERM, signal.SIGINT):
    signal.signal(s, signal.SIG_IGN)  # the host ends us, once it has drained
me, path = Plugin(), os.path.join(os.environ["PLUGIN_UNIX_SOCKET_DIR"], str(os.getpid()))
server = grpc.server(ThreadPoolExecutor(8), interceptors=[me],
                     options=[("grpc.max_receive_message_length", DESCRIPTION.max_message_bytes)])
healthy = health.HealthServicer()
healthy.set("plugin", health_pb2.HealthCheckResponse.SERVING)
health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
plugin_pb2_grpc.add_PluginServiceServicer_to_server(me, server)
sink_pb2_grpc.add_SinkServiceServicer_to_server(me, server)
server.add_insecure_port("unix:" + path)
server.start()
print(f"1|1|unix|{path}|grpc", flush=True)
threading.Timer(15, lambda: me.called or os._exit(1)).start()
sys.stdin.buffer.read()  # the lifeline: it ends however the host does
os._exit(0)
