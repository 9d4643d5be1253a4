"""Something to post to, for a try and for conformance.yaml: it shows every event, and refuses those of type Refused.

    python3 receiver.py [PORT]             receives on this port of 127.0.0.1, 8099 by default
    python3 receiver.py down|up [PORT]     makes it answer 503, or 204 again
    python3 receiver.py ids [PORT]         prints the ids of all that it has taken, in order
"""
import http.server, sys, urllib.parse, urllib.request

COMMAND = sys.argv[1] if sys.argv[1:2] in (["down"], ["up"], ["ids"]) else None
PORT = int(sys.argv[-1]) if sys.argv[-1].isdigit() else 8099


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open
    away, ids = False, []

    def do_GET(self):  # commands
        if self.path in ("/down", "/up"):
            Handler.away = self.path == "/down"
        self.say(200, "\n".join(self.ids))

    def do_HEAD(self):  # relevo doctor
        self.say(204)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if Handler.away:
            return self.say(503)
        if self.headers["ce-type"] == "Refused":
            return self.say(400)
        id, subject = urllib.parse.unquote(self.headers["ce-id"]), self.headers["ce-subject"]
        self.ids.append(id)
        print(id, self.headers["ce-type"], subject, ascii(body[:80]))
        self.say(204)

    def say(self, status, text=""):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_request(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # connections that come at once


if COMMAND:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/{COMMAND}") as answer:
        if COMMAND == "ids":
            sys.stdout.buffer.write(answer.read())
else:
    server = Server(("127.0.0.1", PORT), Handler)
    print(f"receiving on http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
