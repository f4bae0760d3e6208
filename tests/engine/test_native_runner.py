"""Steps that choose their tokens themselves, against the same logits sampled afterwards."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.batch import Batch, Masks, SampleRow, StepOutput
from engine.isolation import IsolatingRunner
from engine.models.native import NOT_SOUGHT, NativeDecoder
from engine.native_runner import NativeRunner
from engine.native_sampler import NativeSampler
from engine.sampler import Sampler
from engine.stream import TokenLogprob
from kernels.cpu.errors import NativeStepError
from kernels.cpu.runtime import Runtime
from tests.engine.test_native_sampler import same
from tests.engine.test_sampler import params, resolved, sample_row
from tests.models.random_models import random_model
from tests.models.test_native import NativeSequences, ids

VOCAB = 333
PLAIN: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 0.0},
    {"top_p": 0.5},
    {"temperature": 1.7, "min_p": 0.02, "top_k": 1 << 30},
]
OTHERS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 2},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"logit_bias": {3: 5.0}, "top_k": 3},
    {"allowed_token_ids": frozenset({1, 5, 60}), "logprobs": 0},
    {"bad_words": ((60,), (1, 3)), "temperature": 0.0},
]


class Rig:
    """A runner over a random model, and what the logits of its steps say."""

    def __init__(self, **sizes: Any) -> None:
        self.model = random_model(**{"vocab_size": VOCAB, "tie_embeddings": False, **sizes})
        self.sequences = NativeSequences(self.model, num_pages=256, page_size=4)
        assert isinstance(self.sequences.decoder, NativeDecoder)
        self.decoder = self.sequences.decoder
        self.sampler = NativeSampler(VOCAB, Runtime(2))
        self.runner = NativeRunner(self.decoder, self.sampler, VOCAB)

    def batch(self, rows: list[SampleRow], **fields: Any) -> Batch:
        """A step of a few tokens of a sequence for each row."""
        chunks = {key: ids(1 + key % 3, VOCAB, seed=key) for key in range(len(rows))}
        step = self.sequences._batch(chunks, "last")
        return replace(step, samples=rows, sampled=np.full(len(rows), NOT_SOUGHT), **fields)

    def run(self, batch: Batch) -> StepOutput:
        batch.sampled.fill(7)
        output = self.runner.prepare(batch)()
        assert output.token_ids == batch.sampled.tolist()
        return output

    def logits(self, batch: Batch) -> torch.Tensor:
        return self.decoder.forward(replace(batch, samples=[]), torch.from_numpy(batch.token_ids))


def rows_of(fields: list[dict[str, Any]], **overrides: Any) -> list[SampleRow]:
    return [sample_row(params(**each), key=key, seed=key, **overrides) for key, each in enumerate(fields)]


def test_a_step_chooses_what_its_logits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, drawn, with what is impossible: as both samplers choose from written logits."""
    rig = Rig()
    likeliest = int(rig.logits(rig.batch(rows_of(PLAIN[:1])))[0].argmax())
    rows = [*rows_of(PLAIN * 4), *rows_of(PLAIN, forbidden=frozenset({likeliest, 5}))]
    batch = rig.batch(rows)
    with monkeypatch.context() as patch:
        patch.setattr(rig.sampler, "pick", None)  # nothing is left to do after the step
        output = rig.run(batch)
    logits = rig.logits(batch)
    for sampler in (Sampler(VOCAB), rig.sampler):
        _, expected, _ = sampler.sample(logits.clone(), rig.batch(rows, masks=None))
        assert expected == output.token_ids
    assert output.token_ids[0] == likeliest != output.token_ids[len(PLAIN) * 4]
    assert output.logprobs == [None] * len(rows)


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_step_with_rows_that_want_more(is_masked: bool) -> None:
    """What is plain is drawn by the step, what is not after it; log-probabilities as without the others."""
    rig = Rig()
    fields = [each for pair in zip(PLAIN, [*OTHERS, PLAIN[1]], strict=True) for each in pair]
    rows = rows_of(fields, has_grammar=False)
    masked = [0, 2, 11] if is_masked else []
    allowed = np.random.default_rng(1).random((len(masked), VOCAB)) < 0.1
    rows = [replace_row(row, has_grammar=index in masked) for index, row in enumerate(rows)]
    masks: Future[Masks | None] | None = resolved(masked, allowed) if is_masked else None
    batch = rig.batch(rows, masks=masks)
    logits = rig.logits(batch)
    output = rig.run(batch)
    sampler = NativeSampler(VOCAB, Runtime(1))
    _, expected, logprobs = sampler.sample(logits.clone(), rig.batch(rows, masks=masks))
    assert output.token_ids == expected
    assert all(map(same, output.logprobs, logprobs))
    assert [each is not None for each in logprobs] == [row.params.logprobs is not None for row in rows]
    _, reference, _ = Sampler(VOCAB).sample(logits.clone(), rig.batch(rows, masks=masks))
    assert output.token_ids == reference
    for at, bits in zip(masked, allowed, strict=True):
        assert bits[output.token_ids[at]]


def test_a_step_with_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain rows under grammars, one of which gets no mask as its token will not be read, and others."""
    rig = Rig()
    grammars = [1, 2, 3, 4, 5, 7, 9]
    rows = [replace_row(row, has_grammar=index in grammars) for index, row in enumerate(rows_of(PLAIN * 2))]
    masked = grammars[:-1]
    allowed = np.random.default_rng(2).random((len(masked), VOCAB)) < 0.2
    allowed[2] = False
    allowed[3] = True
    masks = resolved(masked, allowed)
    batch = rig.batch(rows, masks=masks)
    logits = rig.logits(batch)
    with monkeypatch.context() as patch:
        patch.setattr(rig.sampler, "sample", None)  # less is enough
        output = rig.run(batch)
    for sampler in (Sampler(VOCAB), rig.sampler):
        _, expected, _ = sampler.sample(logits.clone(), rig.batch(rows, masks=masks))
        assert output.token_ids == expected
    assert output.token_ids[3] == -1 != min(output.token_ids[:3] + output.token_ids[4:])


def replace_row(row: SampleRow, *, has_grammar: bool) -> SampleRow:
    return sample_row(row.params, key=row.key, seed=row.seed, has_grammar=has_grammar)


def test_a_step_takes_over_what_the_one_before_it_samples() -> None:
    """Though that is known only after it was prepared. What was not sampled counts as 0."""
    rig = Rig()
    rows = rows_of([{"temperature": 0.0}, {}, {}, {"temperature": 0.0, "logprobs": 0}])
    previous = np.zeros(3, np.int64)
    pending: dict[str, Any] = {
        "pending_at": np.array([0, 5, 6]),
        "pending_from": np.array([2, 0, 1]),
        "previous": previous,
    }
    batch = replace(rig.batch(rows), **pending)
    before = batch.token_ids.tolist()
    launch = rig.runner.prepare(batch)
    previous[:] = 9, -1, 41
    output = launch()
    assert batch.token_ids.tolist() == before, "the batch was changed"
    known = [41, *before[1:5], 9, 0]
    logits = rig.decoder.forward(replace(batch, samples=[]), torch.tensor(known))
    _, expected, _ = Sampler(VOCAB).sample(logits, batch)
    assert output.token_ids == expected


def test_a_step_prepared_before_another_runs_it_later() -> None:
    """In any order of preparing and running; logits of one are not those of the other."""
    rig = Rig()
    first, second = rig.batch(rows_of(PLAIN)), rig.batch(rows_of([*OTHERS, *PLAIN]))
    alone = [rig.run(batch).token_ids for batch in (first, second)]
    launches = [rig.runner.prepare(batch) for batch in (first, second)]
    assert [launch().token_ids for launch in launches] == alone
    assert [rig.run(batch).token_ids for batch in (second, first)] == alone[::-1]


def test_what_else_is_wanted_of_a_step() -> None:
    """Log-probabilities of its tokens, of some more than once, and hidden states, beside rows that sample."""
    rig = Rig()
    rows = rows_of(PLAIN)
    batch = rig.batch(rows)
    tokens = np.arange(len(batch.token_ids))
    measured: dict[str, Any] = {
        "logit_rows": np.concatenate((batch.logit_rows, *[tokens] * 9)),
        "prompt_next": np.tile((tokens * 7) % VOCAB, 9),
        "prompt_top": [2] * len(tokens) * 9,
        "embed_rows": np.array([3, 1]),
    }
    output = rig.run(replace(batch, **measured))
    assert output.token_ids == rig.run(batch).token_ids
    hidden = torch.empty(2, rig.decoder.hidden_size)
    every = replace(batch, samples=[], logit_rows=tokens, embed_rows=np.array([3, 1]))
    logits = rig.decoder.forward(every, torch.from_numpy(batch.token_ids), hidden)
    expected = Sampler(VOCAB).measure_prompt(logits.repeat(9, 1), replace(batch, **measured))
    assert len(expected) == 9 * len(tokens)
    assert all(map(same, output.prompt_logprobs, expected))
    assert np.array_equal(np.stack(output.embeddings), hidden.numpy())


def test_what_cannot_be_measured_leaves_a_step_to_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, as when memory runs out: rows whose last token only the sampler knows go on."""
    fields: list[dict[str, Any]] = [{"bad_words": ((5, 9),)}, {"frequency_penalty": 1.5}]

    def run(failures: list[str]) -> list[list[int]]:
        rig = Rig()
        measure = rig.sampler.measure_prompt

        def measure_prompt(logits: torch.Tensor, batch: Batch) -> list[TokenLogprob]:
            if failures and len(batch.prompt_next):
                raise MemoryError(failures.pop())
            return measure(logits, batch)

        monkeypatch.setattr(rig.sampler, "measure_prompt", measure_prompt)
        runner, sampled = IsolatingRunner(rig.runner), list[list[int]]()
        for position in (3, 4, 5):
            known = {"num_prompt": 3, "position": position}
            rows = [
                sample_row(
                    params(**each), key=key, tokens=[1, 2, 3, *(s[key] for s in sampled[:-1])], **known
                )
                for key, each in enumerate(fields)
            ]
            batch = rig.batch(rows)
            if position == 5:
                places = np.append(batch.logit_rows, [0, 1])
                batch = replace(batch, logit_rows=places, prompt_next=np.array([1, 2]), prompt_top=[0, 0])
            output = runner.prepare(batch)()
            assert not output.failed
            sampled.append(output.token_ids)
        assert not failures
        return sampled

    assert run(["no memory"]) == run([])


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {}, {"logprobs": 1}])
def test_a_row_without_numbers_has_no_token(fields: dict[str, Any]) -> None:
    rig = Rig()
    rig.model.weights.lm_head[7] = math.nan
    broken = NativeSequences(rig.model, num_pages=8, page_size=4)
    assert isinstance(broken.decoder, NativeDecoder)
    runner = NativeRunner(broken.decoder, rig.sampler, VOCAB)
    step = replace(
        broken._batch({0: [1, 2]}, "last"), samples=rows_of([fields]), sampled=np.zeros(1, np.int64)
    )
    assert runner.prepare(step)().token_ids == step.sampled.tolist() == [-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pending_at": np.array([99]), "pending_from": np.array([0]), "previous": np.zeros(1)}, "range"),
        ({"pending_at": np.array([0]), "pending_from": np.array([1]), "previous": np.zeros(1)}, "range"),
        ({"pending_at": np.array([-1]), "pending_from": np.array([0]), "previous": np.zeros(1)}, "range"),
        ({"samples": rows_of([{}], forbidden=frozenset({VOCAB}))}, "outside the vocabulary"),
    ],
)
def test_a_step_out_of_range_is_refused(changes: dict[str, Any], message: str) -> None:
    rig = Rig()
    batch = rig.batch(rows_of([{}]))
    with pytest.raises(NativeStepError, match=message):
        rig.run(replace(batch, **changes))
    rig.run(batch)


def test_ended_sequences_are_forgotten() -> None:
    """By steps that count nothing as well: the next sequence of that key begins anew."""
    rig = Rig()
    penalised = rows_of([{"temperature": 0.0, "frequency_penalty": 2.0}])
    rig.run(rig.batch(penalised))
    assert rig.sampler._penalties._histories
    rig.run(rig.batch(rows_of([{}]), released=[0]))
    assert not rig.sampler._penalties._histories


def test_ended_sequences_are_forgotten_by_a_step_that_fails() -> None:
    """One row that fails alone is not run again."""
    rig = Rig()
    rig.run(rig.batch(rows_of([{"temperature": 0.0, "frequency_penalty": 2.0}])))
    batch = rig.batch(rows_of([{}]), released=[0])
    output = IsolatingRunner(rig.runner).prepare(replace(batch, positions=np.array([-1])))()
    assert (output.token_ids, output.failed) == ([-1], {0: "the forward pass failed"})
    assert not rig.sampler._penalties._histories
