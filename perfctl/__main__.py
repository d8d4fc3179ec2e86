"""The program perfctl, also as python -m perfctl."""

import signal


def main() -> None:
    """Run the command line and exit. Ctrl-C while its modules load ends it without a word, and not with a traceback."""
    interrupt = signal.getsignal(signal.SIGINT)  # ignored under nohup: then it stays so
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from perfctl.orchestrator.cli.main import main as command_line

    signal.signal(signal.SIGINT, interrupt)
    command_line()


if __name__ == "__main__":
    main()
