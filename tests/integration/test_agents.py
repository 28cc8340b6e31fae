"""Clients that are no Python: the JavaScript packages, and two coding agents that use a tool.

Method: the agents are pointed at `galley serve` with scripted tokens, so what is tested is the wire: a call of
a tool, its result sent back, the answer. Packages lie in .cache/npm (scripts/setup.sh lint). Runs with plain
`python3 test_agents.py`; needs GALLEY_BIN and node.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from test_serve import ANSWER, Server

ROOT = pathlib.Path(__file__).parents[2]
NPM = ROOT / ".cache" / "npm"
SECONDS_MAX = 120


def call(tool, name, value):
    return (
        f'<｜DSML｜ calls>\n<｜DSML｜ invoke name="{tool}">\n<｜DSML｜ parameter name="{name}" string="true">'
        f"{value}</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    )


@unittest.skipUnless((NPM / "done").exists(), "no .cache/npm: scripts/setup.sh lint installs it")
class AgentsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "note.txt").write_text("hello from the file\n")

    def serve(self, *texts):
        script = self.folder / "script.jsonl"
        script.write_text("".join(json.dumps({"text": "</think>" + text}) + "\n" for text in texts))
        server = Server("--script", str(script))
        self.addCleanup(lambda: self.assertEqual(server.stop()[0], 0))
        return server

    def run_agent(self, *command, **environment):
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_javascript_clients(self):
        server = Server()
        self.addCleanup(lambda: self.assertEqual(server.stop()[0], 0))
        script = pathlib.Path(__file__).with_name("clients.mjs")
        out = self.run_agent("node", str(script), server.url, CLIENTS_FOLDER=str(NPM))
        answers = json.loads(out)
        self.assertEqual(len(answers), 8)
        self.assertEqual(set(answers.values()), {ANSWER})

    def test_claude_code(self):
        server = self.serve(call("Read", "file_path", self.folder / "note.txt"), "It says hello.")
        out = self.run_agent(
            str(NPM / "node_modules/.bin/claude"),
            "-p",
            "What does note.txt say?",
            "--output-format",
            "stream-json",
            "--verbose",
            ANTHROPIC_BASE_URL=server.url,
            ANTHROPIC_AUTH_TOKEN="none",
            ANTHROPIC_MODEL="galley-echo",
            ANTHROPIC_SMALL_FAST_MODEL="galley-echo",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )
        events = [json.loads(line) for line in out.splitlines()]
        results = [
            block
            for event in events
            if event["type"] == "user"
            for block in event["message"]["content"]
            if block["type"] == "tool_result"
        ]
        self.assertEqual(len(results), 1)
        self.assertIn("hello from the file", json.dumps(results))
        self.assertEqual((events[-1]["type"], events[-1]["result"]), ("result", "It says hello."))

    def test_codex(self):
        server = self.serve(call("exec_command", "cmd", "cat note.txt"), "It says hello.")
        (self.folder / "config.toml").write_text(
            'model = "galley-echo"\nmodel_provider = "galley"\n[model_providers.galley]\nname = "Galley"\n'
            f'base_url = "{server.url}/v1"\nwire_api = "responses"\n'
        )
        out = self.run_agent(
            str(NPM / "node_modules/.bin/codex"),
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--sandbox",
            "danger-full-access",  # what runs is the line above
            "What does note.txt say?",
            CODEX_HOME=str(self.folder),
        )
        self.assertIn("hello from the file", out)
        self.assertIn("It says hello.", out)


if __name__ == "__main__":
    unittest.main()
