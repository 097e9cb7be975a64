"""Processes that end with the benchmark, whatever happens to it."""

import os
import signal
import subprocess
import time

STOP_SECONDS = 5


class Failure(Exception):
    """A run that could not be done; the text is for the user."""


class Process:
    """A process in a session of its own, its output in a file."""

    def __init__(self, command, log, cpus=None, env=None):
        self.name = os.path.basename(command[0])
        self.log = log
        if cpus:
            command = ["taskset", "-c", ",".join(map(str, cpus))] + command
        with open(log, "wb") as output:
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env=env)

    @property
    def pid(self):
        return self.child.pid

    def tail(self):
        """The last lines of its output."""
        with open(self.log, "rb") as output:
            return output.read().decode("utf-8", "replace").strip()[-400:]

    def wait_for(self, condition, seconds):
        """Waits until something holds; fails if the process ends or the time is over."""
        end = time.monotonic() + seconds
        while not condition():
            if self.child.poll() is not None:
                status = self.child.returncode
                raise Failure(f"{self.name} ended with status {status}: {self.tail()}")
            if time.monotonic() > end:
                raise Failure(f"{self.name} was not ready within {seconds} s: {self.tail()}")
            time.sleep(0.01)

    def stop(self):
        """SIGTERM, and SIGKILL if that does not help. Waits for the end."""
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        if self.child.stdin:
            self.child.stdin.close()


def run(command, seconds=30, env=None):
    """The output of a command that has to succeed. Ends it if it takes too long."""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, env=env, text=True)
    try:
        out, err = child.communicate(timeout=seconds)
    except BaseException as error:
        # Also on Ctrl-C: its session is its own, so nobody else tells it.
        child.kill()
        child.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failure(f"{command[0]} took more than {seconds} s") from None
        raise
    if child.returncode != 0:
        raise Failure((out.strip() or err.strip() or f"status {child.returncode}")[-400:])
    return out


def end_like_an_exception():
    """Makes SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that everything is undone."""
    def unwind(number, _frame):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, unwind)
