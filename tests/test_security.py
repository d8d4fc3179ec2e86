"""Every threat of docs/explanation/security.md has tests that exist, and every row of its tables
is a threat that is listed here."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
RECORDS = "ingest/test_hostile_records.py"
SERVE = "cli/test_serve.py"
SECRETS = "cli/test_secrets_kept_out.py"
SHARED = "launch/machine/test_shared_folders.py"

TESTS = {
    # hostile files
    "SQL in names": ("cli/test_hostile_names.py::test_names_are_bound_and_come_back_whole",),
    "markup, scripts and links in names": (
        "report/page/test_page.py::test_hostile_names_stay_text_everywhere",
        "cli/test_hostile_names.py::test_pages_and_drawings_hold_them_as_text",
    ),
    "spreadsheet formulas, JUnit XML, GitHub annotations": (
        "test_redact.py::test_the_reader_of_a_format_neither_runs_nor_refuses_a_text",
    ),
    "escape codes for the terminal": (
        "cli/test_hostile_names.py::test_no_command_sends_a_terminal_what_it_would_obey",
        f"{RECORDS}::test_names_of_files_that_are_commands_to_a_terminal_are_shown_as_text",
    ),
    "gzip bombs, deeply nested JSON": (
        "parsers/kineto/test_stream.py::test_a_gzip_bomb_is_refused_with_its_expansion",
        f"{RECORDS}::test_a_workloads_record_that_makes_no_sense_is_one_line",
    ),
    "views, virtual tables and triggers in SQLite files": (
        "parsers/test_hostile_sqlite.py::test_views_named_like_tables_are_no_tables_and_never_run",
    ),
    "a database with replaced views": (
        "store/test_own_changes.py::"
        "test_a_trigger_on_a_table_of_perfctls_does_not_fire_stays_and_is_named",
    ),
    "files that crash a native reader": (
        "parsers/ncu/test_rep_results.py::test_a_report_of_which_nothing_could_be_read_says_why",
    ),
    "pickles, YAML, XML": (
        "test_dangerous_calls.py::test_nothing_is_unpickled_evaluated_or_given_to_a_shell",
    ),
    "checkpoints that run code": (
        "workloads/models/test_weights.py::"
        "test_a_file_that_is_no_checkpoint_is_one_line_and_nothing_in_it_runs",
    ),
    "archives with `..`, links or huge members": (
        "workloads/data/test_imagenet_val.py::"
        "test_members_that_are_no_plain_images_are_ignored_and_named",
        "workloads/data/test_imagenet_val.py::test_a_class_that_would_leave_the_folder_is_refused",
        "ingest/test_archives.py::test_an_archive_that_cannot_be_read_costs_itself_only",
        "workloads/models/test_hostile_archives.py::test_a_header_of_a_gigabyte_is_refused_unread",
        "workloads/models/test_hostile_archives.py::"
        "test_a_table_that_claims_what_is_not_there_is_an_error_at_once",
    ),
    "records that name files outside their folder": (
        f"{RECORDS}::test_a_runs_record_that_names_what_is_not_its_own_makes_no_run",
        f"{RECORDS}::test_a_link_that_leads_out_of_a_recording_is_not_copied",
    ),
    "shell syntax in names and options": (
        "launch/cluster/test_slurm_script.py::"
        "test_names_that_a_shell_would_obey_reach_the_program_as_they_are",
        "launch/profilers/test_ncu.py::"
        "test_what_means_something_to_ncu_in_a_layers_name_is_escaped",
        "test_dangerous_calls.py::test_nothing_is_unpickled_evaluated_or_given_to_a_shell",
    ),
    "queries that write, attach or never end": (
        "cli/test_query.py::test_nothing_but_reading_is_allowed",
    ),
    "an agent (MCP) that writes or opens files": (
        "commands/mcp/test_limits.py::"
        "test_a_write_and_a_path_are_refused_in_one_line_and_the_next_question_is_answered",
    ),
    # shared machines
    "another user's file at `/tmp/perfctl-UID`": (
        f"{SHARED}::test_what_stands_in_the_place_of_the_folder_of_locks_is_refused",
    ),
    "links at paths that perfctl writes": (
        f"{SHARED}::test_locks_are_never_taken_and_records_never_written_through_a_link",
    ),
    "another user's cache entries": (
        "estimate/test_traces.py::test_an_entry_that_another_user_made_is_not_read",
    ),
    "others reading temporary files of a run": (
        f"{SHARED}::test_the_temporary_folder_of_a_run_is_private",
    ),
    # reports in the browser
    "paths and links to other files": (
        f"{SERVE}::test_ctrl_c_ends_it_cleanly_and_the_address_is_this_machines_own",
        f"{SERVE}::test_nothing_outside_and_nothing_but_pages_is_given",
        f"{SERVE}::test_only_get_and_head_are_answered",
    ),
    "DNS rebinding": (f"{SERVE}::test_a_name_that_somebody_elses_dns_points_here_is_refused",),
    "a report made by someone else": (
        f"{SERVE}::test_a_page_is_shown_with_its_type_and_in_a_sandbox_and_may_load_nothing",
        f"{SERVE}::test_a_sweep_that_runs_makes_the_list_refresh_until_it_ends",
    ),
    "a page that asks the calculator's server": (
        f"{SERVE}::test_only_a_page_of_this_calculator_may_ask_and_runs_no_other_script",
    ),
    "1,000 idle connections": (
        f"{SERVE}::test_idle_connections_keep_nobody_out",
        f"{SERVE}::test_a_caller_that_hangs_up_leaves_no_word_and_the_next_is_answered",
    ),
    # secrets
    "process environments in profiler reports": (
        f"{SECRETS}::test_a_process_environment_in_a_report_reaches_neither_store_nor_page",
        f"{SECRETS}::test_the_process_environment_of_perfctl_itself_is_kept_nowhere",
    ),
    "tokens, passwords and private keys": (
        "test_redact.py::test_a_token_with_a_well_known_beginning_goes_from_any_text",
    ),
    "`--token VALUE`, a login in a URL": (
        f"{SECRETS}::test_secrets_of_a_run_reach_neither_store_nor_page_nor_what_is_said",
    ),
    "a report that you pass on": (
        "commands/test_scrub.py::"
        "test_a_copy_of_an_nsys_export_has_the_same_measurements_and_no_value_of_the_environment",
    ),
}
"""Threat, as the page writes it -> the tests of perfctl's protection, below tests/."""


def test_the_page_lists_these_threats_each_with_a_protection():
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    threats = [threat for threat, protection in rows if protection != "protection"]
    assert threats == list(TESTS)


@pytest.mark.parametrize("test", sorted({test for tests in TESTS.values() for test in tests}))
def test_the_test_of_a_threat_exists(test):
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
