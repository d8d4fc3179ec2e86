"""python -m perfctl"""

from perfctl.orchestrator.cli.main import main

if __name__ == "__main__":
    main()
