"""Break the code on purpose, one line at a time, and see whether the nearest tests notice.

    python tools/mutants.py [NAME …]          all, or those whose name contains one of these words

Each mutant is a text that is replaced in a copy of the source; the tests run against the copy. A mutant that its tests
do not notice survives: either a test is missing, or the line is not needed. Exit code 1 if one survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 600


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in a file of src/easgd; these tests, below tests/, must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    # the handshake
    Mutant(
        "a worker need not prove itself",
        "engines/ray/sockets.py",
        'if not hmac.compare_digest(proof, prove(self.secret, b"worker", mine, theirs)):',
        "if False:",
        "engines/ray/test_sockets.py",
    ),
    Mutant(
        "a shard need not prove itself",
        "engines/ray/sockets.py",
        'if not hmac.compare_digest(_read_bytes(self.socket, PROOF), prove(secret, b"shard", theirs, mine)):',
        "_read_bytes(self.socket, PROOF)\n            if False:",
        "engines/ray/test_sockets.py",
    ),
    Mutant(
        "both prove the same",
        "engines/ray/sockets.py",
        'return hmac.digest(secret, who + one + other, "sha256")',
        'return hmac.digest(secret, one + other, "sha256")',
        "engines/ray/test_sockets.py",
    ),
    Mutant(
        "a message may be of any size",
        "engines/ray/sockets.py",
        "if size > most:",
        "if False:",
        "engines/ray/test_sockets.py",
    ),
    Mutant(
        "a handshake may take for ever",
        "engines/ray/sockets.py",
        "        timer.start()\n",
        "",
        "engines/ray/test_sockets.py",
    ),
    # the transport
    Mutant(
        "what was not delivered is sent under a new number",
        "engines/ray/client.py",
        "        late = self._resolve(fragment, RETRY_SECONDS)\n",
        "        late = None\n",
        "engines/ray/test_transport.py",
    ),
    Mutant(
        "what the center has already is sent again",
        "engines/ray/client.py",
        "message = message - late[0].message",
        "message = message - 0",
        "engines/ray/test_transport.py",
    ),
    # the shard and its ledger
    Mutant(
        "asked again, it applies again",
        "engines/ray/shard.py",
        "if request.sequence <= entry.sequence:",
        "if False:",
        "engines/ray/test_shard.py engines/ray/test_transport.py",
    ),
    Mutant(
        "a dead incarnation is served",
        "engines/ray/shard.py",
        "if self.dead.get(request.rank, -1) >= request.incarnation:",
        "if False:",
        "engines/ray/test_shard.py",
    ),
    Mutant(
        "an older roll replaces a newer one",
        "engines/ray/shard.py",
        "if serial <= self.serial:",
        "if False:",
        "engines/ray/test_shard.py engines/ray/test_coordinator.py",
    ),
    Mutant(
        "a snapshot over shards holds nobody up",
        "engines/ray/holds.py",
        "return min(behind, default=None)",
        "return None",
        "engines/ray/test_shard.py",
    ),
    Mutant(
        "a snapshot waits for nobody",
        "engines/ray/shard.py",
        "whole = self._changed.wait_for(lambda: self._reached(target), seconds)",
        "whole = True",
        "engines/ray/test_shard.py",
    ),
    Mutant(
        "a shard that went back has the old epoch",
        "engines/ray/shard.py",
        'self.epoch = state["epoch"] + 1',
        'self.epoch = state["epoch"]',
        "engines/ray/test_shard.py",
    ),
    Mutant(
        "a shard that went back forgets the ledger",
        "engines/ray/shard.py",
        'self.ledger = Ledger(state["ledger"], [part.version for part in self.center.parts])',
        "self.ledger = Ledger()",
        "engines/ray/test_shard.py",
    ),
    Mutant(
        "who has left may be heard again",
        "engines/ray/ledger.py",
        "entry.answer, entry.delta, entry.position, entry.left = None, None, None, True",
        "entry.sequence = -1",
        "engines/ray/test_shard.py",
    ),
    # members
    Mutant(
        "a member is acknowledged before it is saved",
        "engines/ray/coordinator.py",
        "        membership.serial += 1\n        self._save_members(center)\n",
        "        membership.serial += 1\n",
        "engines/ray/test_coordinator.py",
    ),
    Mutant(
        "a shard that fails is not told again",
        "engines/ray/coordinator.py",
        "while self.memberships[center].serial == serial:",
        "for _ in range(1):",
        "engines/ray/test_coordinator.py",
    ),
    Mutant(
        "the dead join",
        "engines/ray/membership.py",
        "if self.dead.get(rank, -1) >= incarnation:",
        "if False:",
        "engines/ray/test_shard.py engines/ray/test_coordinator.py",
    ),
    Mutant(
        "the count does not follow the members",
        "engines/local/control.py",
        "self.words[LIVING] = len(joined)",
        "self.words[LIVING] = max(self.words[LIVING], len(joined))",
        "engines/local/test_center.py engines/local/test_recording.py",
    ),
    # the center
    Mutant(
        "what is not finite enters",
        "center/state.py",
        "return math.isfinite(scale) and finite(message)",
        "return True",
        "center/test_state.py",
    ),
    Mutant(
        "the guard refuses nothing",
        "center/guard.py",
        "return None if distance <= bound else Refusal(distance, bound)",
        "return None",
        "center/test_guard.py",
    ),
    Mutant(
        "a stripe is not locked",
        "engines/local/client.py",
        "                    self.wait_seconds += locks.take(STRIPES + s)\n",
        "",
        "engines/local/test_center.py",
    ),
    Mutant(
        "a snapshot shuts nobody out",
        "engines/local/snapshot_lock.py",
        "                if not self._take(GATE, end):\n",
        "                if False:\n",
        "engines/local/test_center.py",
    ),
    Mutant(
        "no stripe is marked as absorbed",
        "engines/local/rounds.py",
        "words[ABSORBED] = found * STRIPES_MOST + s",
        "pass",
        "engines/local/test_rounds.py",
    ),
    Mutant(
        "the sum of a round is given up last",
        "center/state.py",
        "        self._total.zero_()\n        self._update(d)\n",
        "        self._update(d)\n        self._total.zero_()\n",
        "engines/local/test_rounds.py center/test_state.py",
    ),
    Mutant(
        "a round does not wait for lower ranks",
        "engines/local/rounds.py",
        "self._wait(lower_ranks_are_done, deadline,",
        "self._wait(lambda: True, deadline,",
        "engines/local/test_rounds.py",
    ),
    Mutant(
        "an exchange is not written down",
        "center/state.py",
        'self.journal.note(self, "apply", torch.from_numpy(message), scale)\n            self.update_sqnorm',
        "pass\n            self.update_sqnorm",
        "engines/local/test_recording.py",
    ),
    # checkpoints
    Mutant(
        "a checkpoint is not flushed", "files.py", "os.fsync(file.fileno())", "pass", "test_checkpoint.py test_files.py"
    ),
    Mutant(
        "a checkpoint's checksum is not looked at",
        "checkpoint.py",
        'if header["sha256"] != _digest(header["state"], tensors):',
        "if False:",
        "test_checkpoint.py",
    ),
    Mutant(
        "a file is written in place",
        "files.py",
        'scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")',
        "scratch = path",
        "test_files.py test_checkpoint.py",
    ),
]


def fate(mutant: Mutant, source: Path) -> str:
    """What becomes of a mutant: "noticed", "hangs" (which is noticed too), or "SURVIVES"."""
    file = source / "easgd" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.file} has {text.count(mutant.old)} places of {mutant.old!r}; mend it")
    file.write_text(text.replace(mutant.old, mutant.new))
    tests = [str(ROOT / "tests" / name) for name in mutant.tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "120",
        "-m",
        "not slow",
        *tests,
    ]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{mutant.name}: the tests do not run:\n{done.stdout.decode()[-2000:]}")
        return "noticed" if done.returncode else "SURVIVES"
    except subprocess.TimeoutExpired:
        return "hangs"
    finally:
        file.write_text(text)


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            start, state = time.monotonic(), fate(mutant, source)
            survivors += [mutant] if state == "SURVIVES" else []
            print(f"{state:<9} {time.monotonic() - start:5.0f} s  {mutant.file}: {mutant.name}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants are noticed")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
