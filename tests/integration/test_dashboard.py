"""deploy/grafana.json shows what /metrics prints: every name it asks for is there, and every name that is there is
shown.

Method: `galley serve` with the small trained model, asked once, and one in front of an engine that is not there. Runs with plain `python3 test_dashboard.py`; needs
GALLEY_BIN.
"""

import itertools
import json
import pathlib
import re
import tempfile
import unittest

import openai
from test_serve import Server, curl

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "mini-test"


class DashboardTest(unittest.TestCase):
    def test_names(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server("--model", str(ROOT / "models" / MODEL), "--server.data", folder)
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30)
            client.responses.create(model=MODEL, input="Hello!", max_output_tokens=4)
            client.close()
            metrics = curl(server.url + "/metrics")
            self.assertEqual(server.stop()[0], 0)
        server = Server("--engine-url", "http://127.0.0.1:1", "--tokenizer", str(ROOT / "tests/data/small_tokenizer.json"), "--server-otlp", "http://127.0.0.1:1")
        metrics += curl(server.url + "/metrics")
        self.assertEqual(server.stop()[0], 0)
        printed = set(re.findall(r"^# TYPE (\w+) ", metrics, re.M))
        self.assertGreater(len(printed), 15)
        dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        queries += [each["query"] for each in dashboard["templating"]["list"]]
        asked = {
            re.sub(r"_bucket$", "", name) for query in queries for name in re.findall(r"\bgalley_\w+", query)
        }
        self.assertEqual(asked, printed)

    def test_panels_do_not_cover_each_other(self):
        dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
        places = {panel["title"]: panel["gridPos"] for panel in dashboard["panels"]}
        self.assertEqual(len(places), len(dashboard["panels"]))
        for (one, a), (other, b) in itertools.combinations(places.items(), 2):
            apart = (
                a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
            )
            self.assertTrue(apart, f"{one} and {other}")
        self.assertLessEqual(max(place["x"] + place["w"] for place in places.values()), 24)
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]))


if __name__ == "__main__":
    unittest.main()
