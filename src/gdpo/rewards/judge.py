"""Rewards that ask a language model: one rubric for all, or criteria that differ from prompt to prompt."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards.base import RewardFunction, column_values, factory, model_text, reward
from gdpo.rewards.judge_calls import Memory, Question, Setup, ask_all
from gdpo.rewards.support import check_installed, check_number, check_whole, is_missing, prompt_text, rows_of

_LOCAL_KEY = "none"


@factory("judge")
def judge(
    rubric: str,
    model: str,
    *,
    name: str = "judge",
    base_url: str | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    at_once: int = 8,
    seconds: float = 60.0,
    cache: str | Path | None = None,
    scale: tuple[float, float] = (1, 10),
    prompt: str = "prompts",
    reference: str | None = None,
    longest: int = 20_000,
    retries: int = 4,
    options: Mapping[str, Any] | None = None,
) -> RewardFunction:
    """The score that a language model gives the completion by a rubric; None where no score was had, never 0.

    Any server that speaks OpenAI's chat completions will do. The completion is sent between marks with a random code,
    as data; still, a judge can be talked round, so look at what it rewards. What fails (no answer in time, an HTTP
    error after the retries, a reply without a score in range) gives None and is warned of once. When calls fail one
    after the other, the rest of the batch is not asked.

    Args:
        rubric: what is asked for, in words.
        model: the judge's name at the server.
        name: the reward's name.
        base_url: the server's address, such as ``http://localhost:8000/v1``; OpenAI's where None and
            ``OPENAI_BASE_URL`` is not set.
        api_key_env: the environment variable that holds the key; with another address it may be unset.
        at_once: calls at once.
        seconds: limit for one completion, its retries (of 408, 409, 429, 5xx and lost connections, with growing pauses)
            included.
        cache: a file of JSON lines in which scores are kept, beside memory; one file may serve several judges.
        scale: the lowest and the highest score; the reward's range.
        prompt: the column with the prompts; left out of the request where there is none.
        reference: the column with reference answers, sent along where a row has one.
        longest: characters of each text that are sent at most; the middle of a longer one is left out.
        retries: tries after the first.
        options: further arguments of the request, such as ``{"temperature": 0}``.

    Raises:
        Error: no openai, no key, or an option with a wrong value.
    """
    if not isinstance(rubric, str) or not rubric.strip():
        raise Error(f"judge has rubric={rubric!r}, but a text was expected")
    return _judge(
        "judge", name, lambda count, columns: [rubric] * count, cache, prompt, reference,
        _setup("judge", model, base_url, api_key_env, at_once, seconds, scale, longest, retries, options),
    )  # fmt: skip


@factory("criterion")
def criterion(
    name: str,
    model: str,
    *,
    rubrics: str = "rubrics",
    base_url: str | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    at_once: int = 8,
    seconds: float = 60.0,
    cache: str | Path | None = None,
    scale: tuple[float, float] = (1, 10),
    prompt: str = "prompts",
    reference: str | None = None,
    longest: int = 20_000,
    retries: int = 4,
    options: Mapping[str, Any] | None = None,
) -> RewardFunction:
    """The judge's score for one criterion of rubrics that differ from prompt to prompt; None where it does not apply.

    Args:
        name: the criterion, and the reward's name.
        model: the judge's name at the server.
        rubrics: the column that says what applies to a row: a mapping from names to texts, a list of
            ``{"name": ..., "text": ...}``, or either as JSON. A name that is not there, or whose text is empty or None
            (as ``datasets`` fills in what only other rows have), does not apply.
        base_url, api_key_env, at_once, seconds, cache, scale, prompt, reference, longest, retries, options: as for
            ``judge``.

    Raises:
        Error: as for ``judge``; a row's rubrics that are none of the above.
    """
    if not isinstance(name, str) or not name.strip():
        raise Error(f"criterion has name={name!r}, but the name of a criterion was expected")

    def texts(count: int, columns: dict[str, Any]) -> list[str | None]:
        given = column_values(columns, rubrics, count, f"criterion {name!r}")
        return [_text_of(name, value, row, rubrics) for row, value in enumerate(given)]

    return _judge(
        "criterion", name, texts, cache, prompt, reference,
        _setup("criterion", model, base_url, api_key_env, at_once, seconds, scale, longest, retries, options),
    )  # fmt: skip


def _judge(
    asking: str,
    name: str,
    rubrics_of: Callable[[int, dict[str, Any]], Sequence[str | None]],
    cache: str | Path | None,
    prompt: str,
    reference: str | None,
    setup: Setup,
) -> RewardFunction:
    memory = Memory(cache, setup.scale)
    warned: set[str] = set()

    @reward(range=setup.scale, name=name)
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        count = len(completions)
        prompts = rows_of(columns.get(prompt), count)
        references: Sequence[Any] = [None] * count
        if reference is not None:
            references = column_values(columns, reference, count, asking)
        keys: list[str | None] = []
        open_questions: dict[str, Question] = {}
        for row, rubric in enumerate(rubrics_of(count, columns)):
            if rubric is None:
                keys.append(None)
                continue
            known = None if is_missing(references[row]) else str(references[row])
            question = Question(rubric, prompt_text(prompts[row]), model_text(completions[row]), known)
            keys.append(key := setup.key(question))
            if memory.get(key) is None:
                open_questions[key] = question
        outcome = ask_all(setup, open_questions, memory.put)
        failed = [key for key in keys if key in outcome.failures]
        if failed and asking not in warned:
            warned.add(asking)
            warnings.warn(
                f"{len(failed)} of {count} completions have no score from {name} ({outcome.failures[str(failed[0])]}; "
                "said once)", stacklevel=3,
            )  # fmt: skip
        # Not from memory alone: it forgets the oldest.
        return [None if key is None else outcome.scores.get(key, memory.get(key)) for key in keys]

    return score


def _setup(
    asking: str, model: str, base_url: str | None, api_key_env: str, at_once: int, seconds: float,
    scale: Sequence[float], longest: int, retries: int, options: Mapping[str, Any] | None,
) -> Setup:  # fmt: skip
    if not isinstance(model, str) or not model:
        raise Error(f"{asking} has model={model!r}, but the name of a model was expected")
    if base_url is not None and not (isinstance(base_url, str) and base_url.startswith(("http://", "https://"))):
        raise Error(
            f"{asking} has base_url={base_url!r}, but an address such as 'http://localhost:8000/v1' was expected"
        )
    for argument, value, least in (("at_once", at_once, 1), ("longest", longest, 100), ("retries", retries, 0)):
        check_whole(asking, argument, value, least)
    limit = check_number(asking, "seconds", seconds, above=0)
    if not isinstance(scale, Sequence) or len(scale) != 2:
        raise Error(f"{asking} has scale={scale!r}, but (lowest, highest) was expected")
    low, high = (check_number(asking, "scale", value) for value in scale)
    if not low < high:
        raise Error(f"{asking} has scale={scale!r}, but the lowest below the highest was expected")
    if options is not None and not isinstance(options, Mapping):
        raise Error(f"{asking} has options={options!r}, but a mapping such as {{'temperature': 0}} was expected")
    check_installed(asking, "openai", "openai")
    address = base_url or os.environ.get("OPENAI_BASE_URL") or None
    key = os.environ.get(api_key_env, "")
    if not key and address is None:
        raise Error(f"{asking} needs a key in the environment variable {api_key_env}, or base_url of a server without")
    return Setup(
        model, address, key or _LOCAL_KEY, at_once, limit, (low, high), longest, retries,
        dict(options or {}),
    )  # fmt: skip


def _text_of(name: str, rubrics: object, row: int, column: str) -> str | None:
    """The criterion's text in a row's rubrics; None where it does not apply."""
    if isinstance(rubrics, str) and rubrics.strip():
        try:
            rubrics = json.loads(rubrics)
        except (ValueError, RecursionError):
            raise Error(f"criterion {name!r}: {column!r} of row {row} is a text that is no JSON") from None
    if is_missing(rubrics):
        return None
    found: object = None
    if isinstance(rubrics, Mapping):
        found = rubrics.get(name)
    elif isinstance(rubrics, list | tuple) and all(isinstance(entry, Mapping) for entry in rubrics):
        found = next((entry.get("text") for entry in rubrics if entry.get("name") == name), None)
    else:
        raise Error(
            f"criterion {name!r}: {column!r} of row {row} is {type(rubrics).__name__}, but a mapping from names to "
            'texts or a list of {"name", "text"} was expected'
        )
    return None if is_missing(found) else str(found)
