"""Page templates, style and script: data, read by perfctl.orchestrator.report.page.page."""
