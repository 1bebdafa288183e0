"""Options of generate are refused before slow work: before a model is opened, or before its weights are read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from spoil import VOCAB, Refuse

from mlx_skipspec.cli import main

EARLY: list[tuple[str, ...]] = [
    *(("--temp", value) for value in ("nan", "-1", "inf", "1e-30", "hot")),
    *(("--top-p", value) for value in ("1.5", "-0.1", "nan")),
    *(("--top-k", value) for value in ("-1", "1.5")),
    *(("--min-p", value) for value in ("2", "-1", "nan")),
    *(("--seed", value) for value in ("-1", str(2**70), "x")),
    *(("--repetition-penalty", value) for value in ("0", "-1", "nan", "inf")),
    *(("--repetition-context-size", value) for value in ("0", "-3")),
    *(("--max-tokens", value) for value in ("0", "-2", "many", "1.5")),
    *(("--logit-bias", value) for value in ("", "{", "[]", "3", '{"a": 1}', '{"1.5": 1}', '{"-1": 1}', "[" * 100_000)),
    *(("--logit-bias", f'{{"1": {value}}}') for value in ('"x"', "null", "[]", "NaN", "Infinity", "1" + "0" * 400)),
    *(("--chat-template-config", value) for value in ("", "{", "[]", "true")),
    *(("--kv-bits", value) for value in ("5", "0", "-4", "x")),
    *(("--kv-group-size", value) for value in ("0", "-32", "48")),
    *(("--max-kv-size", value) for value in ("3", "4", "-1", "x")),
    *(("--draft-tokens", value) for value in ("0", "65", "x")),
    *(("--prefill-step-size", value) for value in ("0", "-1", str(10**30))),
    *(("--plan", value) for value in ("x", "", "1", "1,1,1", "1.5,1", "0,0", "-1,2", "1,-1")),
    *(("--drafter", drafter, "--plan", "1,1") for drafter in ("none", "lookup")),
    *(("--drafter", drafter, "--head", "dense") for drafter in ("none", "lookup")),
    ("--head", "best"),
    ("--drafter", "oracle"),
    ("--dtype", "int8"),
    ("--stop", ""),
]


@pytest.mark.parametrize("options", EARLY, ids=lambda options: " ".join(options)[:40])
def test_an_option_no_model_could_follow_is_refused_before_one_is_opened(
    refuse: Refuse, no_model: None, model: Path, options: tuple[str, ...]
) -> None:
    refuse("generate", "-p", "hi", "--model", model, *options)


@pytest.mark.parametrize("drafter", ["none", "lookup"])
def test_a_sidecar_for_a_drafter_that_has_no_use_for_it(
    refuse: Refuse, no_model: None, model: Path, sidecar: Path, drafter: str
) -> None:
    said = refuse("generate", "-p", "hi", "--model", model, "--sidecar", sidecar, "--drafter", drafter)
    assert "uses no --plan and no --sidecar" in said


@pytest.mark.parametrize(
    "options",
    [
        ("--drafter", "skip"),
        ("--head", "clusters"),
        ("--head", "dense"),
        ("--head", "clusters", "--plan", "2,2"),
        ("--plan", "2,20"),
        ("--plan", "3,3"),
        ("--plan", f"{10**30},1"),
        ("--logit-bias", f'{{"{VOCAB}": 1}}'),
        ("--logit-bias", f'{{"{10**30}": 1}}'),
        ("--kv-bits", "4", "--kv-group-size", "64"),
        ("--chat-template-config", '{"messages": []}'),
        ("--chat-template-config", '{"tokenize": false}'),
        ("--chat-template-config", '{"chat_template": "{% for"}'),
        ("--system-prompt", "\udcff"),
    ],
    ids=str,
)
def test_an_option_this_model_cannot_follow_is_refused_before_its_weights_are_read(
    refuse: Refuse, no_weights: None, model: Path, options: tuple[str, ...]
) -> None:
    refuse("generate", "-p", "hi", "--model", model, *options)


@pytest.mark.parametrize("plan", ["2,1", "9,9", "x"])
def test_a_plan_that_is_not_the_sidecars(
    refuse: Refuse, no_weights: None, model: Path, sidecar: Path, plan: str
) -> None:
    refuse("generate", "-p", "hi", "--model", model, "--sidecar", sidecar, "--plan", plan)


@pytest.mark.parametrize("arguments", [["--nonsense"], ["stray"], ["-p"], []], ids=str)
def test_a_wrong_usage_keeps_clicks_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", "generate", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert err.splitlines()[-1].startswith("Error: ")
