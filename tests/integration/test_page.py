"""The page at / in a real browser.

Method: `galley serve` with models/mini-test (random weights, quick), with scripted answers, and without a
model; headless Chromium asks, stops, retries, answers a tool and looks at the server's figures. Nothing may
appear in the browser's console. With SHOTS=FOLDER it also keeps pictures of the page.
Runs with plain `python3 test_page.py`; needs GALLEY_BIN, Chromium and its driver.
"""

import json
import os
import pathlib
import tempfile
import unittest

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from test_clients import CALL
from test_serve import ANSWER, Server

MINI = pathlib.Path(__file__).parents[2] / "models" / "mini-test"
WAIT_SECONDS = 20
TOOL = '[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        options = webdriver.ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.browser = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()

    def open(self, *flags, width=1200, dark=False, models=True, **popen):
        server = Server(*flags, **popen)
        self.addCleanup(lambda: self.assertEqual(server.stop()[0], 0))
        self.addCleanup(lambda: self.browser.get("about:blank"))
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.browser.set_window_size(width, 850)
        self.browser.get_log("browser")  # of the test before
        self.browser.get(server.url + "/")
        self.until(lambda: self.find("#model option") or not models)

    def find(self, css):
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def text(self, css):
        """What is to be read there, at one moment: elements come and go."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText).join('\\n')"
        return self.browser.execute_script(script, css)

    def until(self, condition):
        WebDriverWait(self.browser, WAIT_SECONDS, poll_frequency=0.05).until(lambda _: condition())

    def answered(self):
        return not self.find(".turn.busy") and self.text("#status") != "Galley is answering."

    def say(self, text):
        self.find("#input")[0].send_keys(text, Keys.ENTER)

    def say_and_wait(self, text):
        self.say(text)
        self.until(self.answered)

    def shot(self, name):
        if folder := os.environ.get("SHOTS"):
            self.browser.save_screenshot(os.path.join(folder, name))

    def expect_quiet_console(self, allowed=""):
        for entry in self.browser.get_log("browser"):
            self.assertTrue(allowed and allowed in entry["message"], entry)

    def test_talk(self):
        self.open()
        self.assertEqual(self.find("#model")[0].get_attribute("value"), "galley-echo")
        self.say_and_wait("Hello!")
        self.assertEqual(self.text(".turn.assistant > .text"), ANSWER)
        self.assertEqual(self.text(".turn.user > .text"), "Hello!")
        figures = self.text("#figures")
        self.assertIn("tokens/s", figures)
        self.assertIn("said all", figures)
        self.assertIn("req_", figures)
        self.find("#show-tokens")[0].click()
        self.until(lambda: self.find("#tokens .token.control"))
        self.assertIn("<｜User｜>", self.text("#tokens"))
        self.assertIn("Hello", self.text("#tokens"))
        self.find("#new")[0].click()
        self.assertFalse(self.find(".turn"))
        self.expect_quiet_console()

    def test_bad_tools_are_named_and_can_be_mended(self):
        self.open()
        self.browser.execute_script("document.getElementById('tools').value = '{'")
        self.say("Hello!")
        self.until(lambda: "tools are not understood" in self.text("#status"))
        self.assertEqual(self.text(".turn.user > .text"), "Hello!")
        self.browser.execute_script("document.getElementById('tools').value = ''")
        self.find("#retry")[0].click()
        self.until(lambda: self.text(".turn.assistant > .text") == ANSWER)
        self.assertEqual(len(self.find(".turn")), 2)
        self.expect_quiet_console()

    def test_a_call_that_was_cut_off_spoils_nothing(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as script:
            script.write(json.dumps({"text": CALL[:-30], "finish": "length"}) + "\n")
            script.write(json.dumps({"text": "It rains."}) + "\n")
            script.flush()
            self.open("--script", script.name)
            self.browser.execute_script("document.getElementById('tools').value = arguments[0]", TOOL)
            self.say_and_wait("How is Oslo?")
            self.assertIn("cut off", self.text(".turn .problem"))
            self.assertFalse(self.find(".call"))
            self.say_and_wait("And now?")
            self.assertIn("It rains.", self.text(".turn.assistant > .text"))
        self.expect_quiet_console()

    def test_a_wrong_setting_is_shown(self):
        self.open()
        self.browser.execute_script("document.getElementById('max-tokens').value = 1.5")
        self.say("Hello!")
        self.until(lambda: self.find("#form details[open]"))
        self.assertFalse(self.find(".turn"))
        self.expect_quiet_console()

    def test_thinking_is_shown_apart(self):
        self.open()
        self.find("#thinking")[0].click()
        self.say_and_wait("Hello!")
        self.assertEqual(self.text(".turn.assistant > .text"), ANSWER)
        thoughts = self.find(".turn.assistant .thoughts")[0]
        self.assertTrue(thoughts.is_displayed())
        thoughts.find_element(By.TAG_NAME, "summary").click()
        self.assertIn("nothing to think about", thoughts.text)
        self.assertIn("Of it thinking", self.text("#figures"))
        self.expect_quiet_console()

    def test_errors_are_shown_and_can_be_retried(self):
        self.open()
        field = self.find("#temperature")[0]
        self.find("#form details summary")[0].click()
        # Past what the field itself checks.
        self.browser.execute_script("arguments[0].max = 99; arguments[0].value = 9", field)
        self.say_and_wait("Hello!")
        self.assertIn("temperature", self.text(".turn .problem"))
        self.browser.execute_script("arguments[0].value = 1", field)
        self.find("#retry")[0].click()
        self.until(lambda: self.text(".turn.assistant > .text") == ANSWER)
        self.assertEqual(len(self.find(".turn")), 2)
        self.expect_quiet_console(allowed="400 (Bad Request)")

    def test_a_tool_is_called_and_answered(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as script:
            script.write(json.dumps({"text": CALL}) + "\n" + json.dumps({"text": "It rains."}) + "\n")
            script.flush()
            self.open("--script", script.name)
            self.browser.execute_script("document.getElementById('tools').value = arguments[0]", TOOL)
            self.say_and_wait("How is Oslo?")
            self.assertIn("weather", self.text(".call"))
            self.assertIn("Oslo", self.text(".call pre"))
            self.find(".call textarea")[0].send_keys("rain")
            self.assertTrue(self.find("#send[disabled]"))  # first the tool's answer
            self.find("#input")[0].send_keys("never mind", Keys.ENTER)
            self.assertEqual(len(self.find(".turn")), 2)
            self.find("#input")[0].clear()
            self.shot("page-tool.png")
            self.find(".call button")[0].click()
            self.until(lambda: "It rains." in self.text(".turn.assistant > .text"))
            self.until(self.answered)
        self.expect_quiet_console()

    def test_a_model_answers_stops_and_is_watched(self):
        self.open("--model", str(MINI))
        self.browser.execute_script("document.getElementById('max-tokens').value = 7000")
        self.say("Tell me a story.")
        self.until(lambda: self.text(".turn.assistant > .text"))
        self.find("#input")[0].send_keys(Keys.ESCAPE)
        self.until(self.answered)
        self.assertIn("You stopped", self.text(".turn .problem"))
        self.browser.execute_script("document.getElementById('max-tokens').value = 40")
        self.find("#retry")[0].click()
        self.until(lambda: "longest answer" in self.text("#figures"))
        self.find("#show-monitor")[0].click()
        self.until(lambda: "galley" not in self.text("#tiles") and "Output" in self.text("#tiles"))
        self.until(lambda: "/chat/completions" in self.text("#requests"))
        self.assertIn("Cache kept for later", self.text("#tiles"))
        self.expect_quiet_console()

    def test_the_shipped_model_introduces_itself(self):
        folder = MINI.parent / "mini"
        for name, width, dark in (("light", 1200, False), ("dark", 1200, True), ("narrow", 420, False)):
            with self.subTest(name):
                self.open("--model", str(folder), width=width, dark=dark)
                questions = json.loads((folder / "introduction.json").read_text())["questions"]
                self.assertEqual([q.text for q in self.find("#questions button")], questions)
                self.find("#questions button")[0].click()
                self.until(lambda: self.find(".turn.assistant") and self.answered())
                self.assertTrue(self.text(".turn.assistant > .text"))
                self.say_and_wait("Tell me a story about a fox called Ruby.")
                self.find("#show-tokens")[0].click()
                self.until(lambda: self.find("#tokens .token"))
                # Nothing is wider than the window.
                wide = "return document.documentElement.scrollWidth > window.innerWidth"
                self.assertFalse(self.browser.execute_script(wide))
                self.shot(f"page-{name}.png")
        self.expect_quiet_console()

    def test_an_api_key_is_asked_for(self):
        self.open(env={**os.environ, "GALLEY_SERVER_KEY": "one"}, models=False)
        self.until(lambda: "API key is needed" in self.text("#status"))
        self.find("#form details summary")[0].click()
        self.find("#key")[0].send_keys("one", Keys.TAB)
        self.until(lambda: self.find("#model option"))
        self.say_and_wait("Hello!")
        self.assertEqual(self.text(".turn.assistant > .text"), ANSWER)
        self.expect_quiet_console(allowed="401 (Unauthorized)")

    def test_keyboard_and_names(self):
        """Everything that can be used has a name, and the keyboard reaches it."""
        self.open()
        unnamed = self.browser.execute_script(
            """return [...document.querySelectorAll("button, input, select, textarea")].filter((e) =>
               !(e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim())).map((e) => e.id)"""
        )
        self.assertEqual(unnamed, [])
        seen = set()
        for _ in range(25):
            self.browser.switch_to.active_element.send_keys(Keys.TAB)
            seen.add(self.browser.switch_to.active_element.get_attribute("id"))
        self.assertLessEqual({"model", "show-chat", "show-monitor", "new", "theme", "input"}, seen)
        self.expect_quiet_console()


if __name__ == "__main__":
    unittest.main()
