"""`server.otlp`: a collector gets a span of each request, in the client's trace, with an event for the first token.

Method: a collector of the test's own. Runs with plain `python3 test_traces.py`; needs GALLEY_BIN.
"""

import http.server
import json
import subprocess
import threading
import unittest

import openai
from test_serve import GALLEY, HELLO, MODEL, Server

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(http.server.BaseHTTPRequestHandler):
    spans = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        for resource in body["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                self.spans.extend(scope["spans"])
        self.send_response(200 if self.path == "/v1/traces" else 404)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


class TracesTest(unittest.TestCase):
    def test_spans(self):
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
            threading.Thread(target=collector.serve_forever, daemon=True).start()
            server = Server("--server-otlp", f"http://127.0.0.1:{collector.server_port}")
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=10)
            for flag in ("01", "00"):
                headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flag}"}
                client.chat.completions.create(model=MODEL, messages=HELLO, extra_headers=headers)
            client.models.list()
            client.close()
            # What waits is sent before the server ends.
            self.assertEqual(server.stop()[0], 0)
            collector.shutdown()
        spans = {span["name"]: span for span in Collector.spans}
        self.assertEqual(len(Collector.spans), 2)
        chat, models = spans["POST /chat/completions"], spans["GET /models"]
        self.assertEqual((chat["traceId"], chat["parentSpanId"]), (TRACE, PARENT))
        self.assertEqual([event["name"] for event in chat["events"]], ["first_token"])
        begun, first, ended = (
            int(time) for time in (chat["startTimeUnixNano"], chat["events"][0]["timeUnixNano"], chat["endTimeUnixNano"])
        )
        self.assertTrue(begun < first <= ended, chat)
        self.assertEqual(models["events"], [])
        self.assertNotEqual(models["traceId"], TRACE)
        self.assertEqual(len({span["spanId"] for span in Collector.spans}), 2)

    def test_an_address_that_is_none(self):
        for url, reason in (("127.0.0.1:4318", "http://"), ("http://a:b@127.0.0.1:4318", "name or password")):
            done = subprocess.run([GALLEY, "serve", "--server-otlp", url], capture_output=True, text=True, timeout=10)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("server.otlp", done.stderr)
            self.assertIn(reason, done.stderr)
            self.assertNotIn("a:b", done.stderr)


if __name__ == "__main__":
    unittest.main()
