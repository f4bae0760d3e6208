"""Which test answers which of the 56 public reports of bugs with constrained output (`tests/cases`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
KNOWN = "grammars/test_known_bugs.py"
VERDICTS = f"{KNOWN}::test_verdicts"
REFUSED = "app/test_structured.py::test_what_cannot_be_enforced_is_refused"
ENDLESS = "app/test_structured.py::test_a_model_that_wants_to_go_on_for_ever_is_held_to_an_end"

# Those of `test_verdicts` carry the number of their report in the table there.
REPORTS: dict[str, list[str]] = {
    **{f"A{n}": [VERDICTS] for n in (1, 2, 3, 4, 5, 8, 14)},
    "A6": [f"{KNOWN}::test_a6_only_the_quote_is_left_after_the_last_character"],
    "A7": [VERDICTS, f"{KNOWN}::test_a7_overlapping_one_of_is_any_of_where_that_is_asked_for"],
    "A9": [f"{KNOWN}::test_a9_recursion_costs_nothing_to_compile"],
    "A10": [f"{KNOWN}::test_a10_any_json_is_bounded_in_digits_and_blanks", ENDLESS],
    "A11": [VERDICTS, ENDLESS],
    "A12": [VERDICTS, f"{KNOWN}::test_a12_a13_what_cannot_be_enforced_is_refused_where_it_stands", REFUSED],
    "A13": [f"{KNOWN}::test_a12_a13_what_cannot_be_enforced_is_refused_where_it_stands", REFUSED],
    "A15": [
        f"{KNOWN}::test_a15_properties_come_in_the_order_of_their_declaration",
        "grammars/test_compiler.py::test_the_order_of_properties_is_part_of_the_key",
    ],
    "A16": [f"{KNOWN}::test_a16_other_properties_are_allowed_unless_told_otherwise"],
    "B1": [f"{KNOWN}::test_b1_b5_every_string_is_one_that_json_reads"],
    "B2": [VERDICTS, "grammars/test_matcher.py::test_half_a_character_must_be_finished"],
    "B3": ["grammars/test_matcher.py::test_special_tokens_are_never_legal_in_text"],
    "B4": [
        "app/test_chat.py::test_no_half_characters_are_streamed",
        "engine/test_detokenizer.py::test_characters_split_over_tokens_come_whole",
    ],
    "B5": [f"{KNOWN}::test_b1_b5_every_string_is_one_that_json_reads"],
    "B6": ["engine/test_token_check.py::test_a_token_with_other_bytes_is_found"],
    "B7": [f"{KNOWN}::test_b7_c1_no_blanks_around_or_in_compact_json"],
    "C1": [
        f"{KNOWN}::test_c1_flexible_blanks_are_bounded",
        f"{KNOWN}::test_c1_blanks_are_those_of_a_pattern",
        ENDLESS,
    ],
    "C2": [
        f"{KNOWN}::test_c2_c9_nothing_but_the_end_follows_a_whole_value",
        "engine/test_constrained.py::test_a_whole_sentence_ends_even_if_the_model_wants_to_go_on",
    ],
    "C3": ["grammars/test_matcher.py::test_every_eos_is_legal_exactly_when_complete"],
    "C4": ["engine/test_constrained.py::test_a_whole_sentence_ends_even_if_the_model_wants_to_go_on"],
    "C5": [
        "app/test_structured.py::test_an_answer_may_be_cut_short_where_that_is_wanted",
        "app/test_tools.py::test_calls_cut_short_finish_by_length",
    ],
    "C6": ["app/test_structured.py::test_stop_strings_end_constrained_text_but_not_the_thought"],
    "C7": [
        "engine/test_constrained.py::test_a_refused_token_ends_its_request_with_an_error",
        "grammars/test_matcher.py::test_a_refused_token_changes_nothing",
    ],
    "C8": [f"{KNOWN}::test_c8_an_end_may_be_legal_and_so_may_be_more"],
    "C9": [f"{KNOWN}::test_c2_c9_nothing_but_the_end_follows_a_whole_value"],
    "D1": ["engine/test_constrained.py::test_each_row_sees_its_own_mask_while_others_come_and_go"],
    "D2": ["app/test_structured.py::test_a_hundred_at_once_with_ten_schemas"],
    "D3": ["engine/test_constrained.py::test_a_mask_is_filled_once_the_tokens_before_it_are_accepted"],
    "D4": ["grammars/test_matcher.py::test_any_path_equals_its_replay"],
    "D5": ["engine/test_constrained.py::test_choices_have_matchers_of_their_own"],
    "D6": ["engine/test_constrained.py::test_a_preempted_matcher_is_neither_reset_nor_fed_twice"],
    "D7": ["app/test_thinking.py::test_the_grammar_holds_behind_the_thought"],
    "D8": [REFUSED],
    "D9": [
        f"{KNOWN}::test_d9_forced_tokens_are_a_beginning_of_the_canonical_ones",
        "engine/test_constrained.py::test_forced_tokens_save_steps_and_change_no_text",
    ],
    "D10": [
        "engine/test_sampler.py::test_masks_rule_out_exactly_the_tokens_whose_bit_is_clear",
        "engine/test_constrained.py::test_logprobs_are_given_for_every_token_of_a_constrained_text",
    ],
    "E1": ["app/test_tools.py::test_streamed_required_calls"],
    "E2": ["app/test_tool_calls.py::test_any_text_reads_the_same_however_it_is_cut"],
    "E3": ["app/test_tools.py::test_required_calls_are_always_valid", "app/test_tools.py::test_a_named_call"],
    "E4": ["app/test_tools.py::test_a_schema_in_a_tool_that_cannot_be_enforced_is_refused"],
    "E5": ["app/test_templates.py::test_text_in_calls_and_results_goes_back_as_it_is"],
    "F1": [
        f"{KNOWN}::test_f1_combinations_are_counted_before_they_are_made",
        f"{KNOWN}::test_f1_schemas_that_differ_in_descriptions_only_are_one_place",
        "grammars/test_schema_cases.py::test_hostile_schema_ends_within_its_limits",
        "grammars/test_compiler.py::test_who_takes_long_leaves_the_processor_to_others",
        "app/test_compile_limits.py::test_time",
        "app/test_compile_limits.py::test_memory",
    ],
    "F2": [f"{KNOWN}::test_f2_f4_what_is_too_large_or_has_nul_is_refused_by_its_size"],
    "F3": [f"{KNOWN}::test_f3_f6_large_bounds_and_lists_compile"],
    "F4": [f"{KNOWN}::test_f4_deep_nesting_is_refused_before_anything_recurs"],
    "F5": ["grammars/test_compiler.py::test_the_cache_is_bounded_and_grammars_in_use_are_not_lost"],
    "F6": [f"{KNOWN}::test_f3_f6_large_bounds_and_lists_compile"],
    "F7": [
        "app/test_structured.py::test_answers_fit_the_schema_in_every_spelling",
        "app/test_structured.py::test_a_field_that_only_looks_like_a_constraint_is_refused",
    ],
    "F8": ["grammars/test_compiler.py::test_running_out_of_lexer_fuel_stays_with_one_sequence"],
    "F9": [f"{KNOWN}::test_f9_no_text_is_lost_behind_an_optional_part"],
}
COUNTS = {"A": 16, "B": 7, "C": 9, "D": 10, "E": 5, "F": 9}


def test_every_report_has_a_test() -> None:
    assert set(REPORTS) == {f"{part}{n}" for part, count in COUNTS.items() for n in range(1, count + 1)}
    assert len(REPORTS) == 56


@pytest.mark.parametrize("report", REPORTS)
def test_the_test_of_a_report_is_there(report: str) -> None:
    for where in REPORTS[report]:
        file, _, name = where.partition("::")
        text = (TESTS / file).read_text()
        assert re.search(rf"def {name}\b", text), where
        if where == VERDICTS:
            assert re.search(rf'"{report}\b', text), where
