"""The examples for orchestrators: their syntax, and that `afd` has every option, key and status that they use.

usage: deploy_test.py AFD FOLDER
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import yaml

AFD, FOLDER = sys.argv[1:3]


def read(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return file.read()


def rank_help():
    return subprocess.run([AFD, "rank", "--help"], capture_output=True, text=True, check=True, timeout=30).stdout


def options_of(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))


class Parsed:
    """A rank that is started with the file and ends before it waits for anybody: its model is missing."""

    def __init__(self, job):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.json")
            # The secret is checked before the model.
            secret = os.path.join(folder, "secret")
            with open(secret, "w", encoding="utf-8") as file:
                file.write("0123456789abcdef0123456789abcdef")
            os.chmod(secret, 0o600)
            job = dict(job, secret_file=secret, model=os.path.join(folder, "none"))
            with open(path, "w", encoding="utf-8") as file:
                json.dump(job, file)
            done = subprocess.run([AFD, "rank", "--config", path, "--role", "attention", "--role-rank", "0"],
                                  capture_output=True, text=True, timeout=30)
            self.status, self.err, self.model = done.returncode, done.stderr, job["model"]


class DeployTest(unittest.TestCase):
    def assert_all_but_the_model_is_right(self, job):
        parsed = Parsed(job)
        self.assertEqual(parsed.status, 1, parsed.err)
        self.assertIn(parsed.model, parsed.err)

    def test_the_check_of_a_file_can_fail(self):
        parsed = Parsed(dict(json.loads(read("job.json")), stagse=2))
        self.assertEqual(parsed.status, 2)
        self.assertIn("no option 'stagse'", parsed.err)

    def test_job_file(self):
        self.assert_all_but_the_model_is_right(json.loads(read("job.json")))

    def test_statuses_of_the_readme_are_those_of_the_help(self):
        told = rank_help()[rank_help().index("Exit status:"):].replace("\n", " ")
        for status in re.findall(r"^\| (\d+) \|", read("README.md"), re.M):
            self.assertRegex(told, rf"\b{status} ")

    def test_unit_is_what_systemd_reads(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("needs systemd-analyze (package systemd)")
        with tempfile.TemporaryDirectory() as folder:
            # The program's place and the user are the installed package's.
            text = read("afd-rank@.service").replace("/usr/bin/afd", "/bin/true")
            path = os.path.join(folder, "afd-rank@ffn-0.service")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60)
            ours = [line for line in done.stderr.splitlines() if "afd-rank" in line]
            self.assertEqual(ours, [])
            # Only what it finds wrong here counts: it reads the machine's own units as well.
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace("KillMode=mixed", "KillMode=never"))
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60)
            self.assertIn("afd-rank", done.stderr)

    def test_unit_starts_the_rank_of_its_name(self):
        unit = read("afd-rank@.service")
        line = re.search(r"^ExecStart=(.*)$", unit, re.M).group(1)
        self.assertLessEqual(options_of(line), options_of(rank_help()))
        # As systemd expands it, for instance attention-3.
        script = line[len("/bin/sh -c '"):-1].replace("$$", "$").replace("%%", "\0").replace("%i", "attention-3").replace("\0", "%")
        with tempfile.TemporaryDirectory() as folder:
            fake = os.path.join(folder, "afd")
            with open(fake, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\nfor word; do echo "$word"; done\n')
            os.chmod(fake, 0o755)
            env = {"CREDENTIALS_DIRECTORY": "/run/credentials/x", "RUNTIME_DIRECTORY": "/run/afd-attention-3", "PATH": os.environ["PATH"]}
            words = subprocess.run(["/bin/sh", "-c", script.replace("/usr/bin/afd", fake)], env=env, capture_output=True,
                                   text=True, check=True, timeout=30).stdout.split("\n")
        value = dict(zip(words, words[1:]))
        self.assertEqual(value["--role"], "attention")
        self.assertEqual(value["--role-rank"], "3")
        self.assertEqual(value["--secret-file"], "/run/credentials/x/secret")
        self.assertEqual(value["--ready-file"], "/run/afd-attention-3/ready")

    def test_unit_gives_the_drain_its_time(self):
        unit = dict(re.findall(r"^(\w+)=(.*)$", read("afd-rank@.service"), re.M))
        self.assertEqual(unit["KillSignal"], signal.SIGTERM.name)
        self.assertGreater(int(unit["TimeoutStopSec"]), json.loads(read("job.json"))["drain_timeout"])
        self.assertEqual(unit["RestartPreventExitStatus"], "2 5")

    def test_manifest(self):
        objects = list(yaml.safe_load_all(read("kubernetes.yaml")))
        by_kind = {}
        for item in objects:
            for key in ("apiVersion", "kind", "metadata"):
                self.assertIn(key, item)
            by_kind.setdefault(item["kind"], []).append(item)
        self.assertEqual({kind: len(items) for kind, items in by_kind.items()}, {"Service": 1, "ConfigMap": 1, "Job": 2})
        service, config = by_kind["Service"][0], by_kind["ConfigMap"][0]
        job = json.loads(config["data"]["job.json"])
        self.assert_all_but_the_model_is_right({key: value for key, value in job.items() if key != "ready_file"})
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertTrue(service["spec"]["publishNotReadyAddresses"])
        self.assertEqual(service["spec"]["ports"][0]["port"], job["port"])
        counts = {"ffn": job["ffn_ranks"], "attention": job["attention_ranks"]}
        for item in by_kind["Job"]:
            spec = item["spec"]
            pod = spec["template"]["spec"]
            (rank,) = pod["containers"]
            env = {entry["name"]: entry for entry in rank["env"]}
            role = env["AFD_ROLE"]["value"]
            self.assertEqual(item["metadata"]["name"], "afd-" + role)
            self.assertEqual(spec["completionMode"], "Indexed")
            self.assertEqual((spec["completions"], spec["parallelism"]), (counts[role], counts[role]))
            self.assertIn("job-completion-index", env["AFD_ROLE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"])
            self.assertEqual(pod["restartPolicy"], "Never")
            self.assertGreater(pod["terminationGracePeriodSeconds"], job["drain_timeout"])
            self.assertEqual(pod["subdomain"], service["metadata"]["name"])
            self.assertEqual(spec["template"]["metadata"]["labels"], service["spec"]["selector"])
            (rule,) = spec["podFailurePolicy"]["rules"]
            self.assertEqual(rule["onExitCodes"]["values"], [2, 5])
            self.assertEqual(rule["onExitCodes"]["containerName"], rank["name"])
            self.assertEqual(rank["readinessProbe"]["exec"]["command"], ["test", "-e", job["ready_file"]])
            self.assertLessEqual(options_of(" ".join(rank["command"])), options_of(rank_help()))
            volumes = {volume["name"] for volume in pod["volumes"]}
            for container in pod["containers"] + pod["initContainers"]:
                for mount in container["volumeMounts"]:
                    self.assertIn(mount["name"], volumes)
            self.assertEqual(pod["initContainers"][0]["command"][-1], job["secret_file"])
        # Ranks meet at the first pod of the FFN's job.
        self.assertEqual(job["host"], "afd-ffn-0." + service["metadata"]["name"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
