"""The program perfctl, also as python -m perfctl."""

import gc
import signal

COLLECT_EVERY = 50_000
"""New objects between two searches for cycles. Loading modules makes objects that stay; at Python's
700 the searches take 0.1 s of each command that reads a report."""


def main() -> None:
    """Run the command line and exit. Ctrl-C while its modules load ends it without a word, and not
    with a traceback."""
    interrupt = signal.getsignal(signal.SIGINT)  # ignored under nohup: then it stays so
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(COLLECT_EVERY)
    from perfctl.orchestrator.cli.main import main as command_line

    signal.signal(signal.SIGINT, interrupt)
    command_line()


if __name__ == "__main__":
    main()
