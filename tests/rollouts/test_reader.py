"""Readers of dumps on small files made here: what is kept, what is counted, what is refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import pickle

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SHARED

import gdpo
from gdpo import Error
from gdpo.rollouts import open_dump, rollout_frame, write_frame


def rows(steps=2, groups=2, size=3, **columns):
    """verl's columns: groups of equal input; ``columns`` maps a name to a function of the row's number."""
    made = []
    for row in range(steps * groups * size):
        made.append(
            {"input": f"q{row // size}", "output": f"a{row}", "gts": "1", "score": 1.0, "step": row // (size * groups)}
            | {name: function(row) for name, function in ({"acc": float} | columns).items()}
        )
    return made


def lines(path, records, end="\n"):
    path.write_text("".join(json.dumps(record) + end for record in records), encoding="utf-8", newline="")
    return path


def table(path, steps=1, prompts=("p", "p", "q", "q"), **columns):
    """TRL's columns."""
    count = len(prompts)
    frame = {"step": np.repeat(np.arange(1, steps + 1), count), "prompt": list(prompts) * steps}
    frame["completion"] = [f"c{row}" for row in range(steps * count)]
    frame |= {name: np.resize(values, steps * count) for name, values in ({"acc": [0.0, 1.0]} | columns).items()}
    pl.DataFrame(frame | {"advantage": np.arange(steps * count) * 0.5}).write_parquet(path)
    return path


def whole(path, **options):
    dump = open_dump(path, **options)
    return dump, list(dump.batches())


def said(dump):
    return " ".join([*dump.summary.notes, *dump.summary.skipped])


def test_lines_are_read_by_step_and_once_more(tmp_path):
    dump, batches = whole(lines(tmp_path / "any.name", rows()))
    assert (dump.framework, dump.rewards, dump.summary.format) == ("verl", ["acc"], "verl")
    assert [batch.step for batch in batches] == dump.summary.steps == [0, 1]
    assert batches[1].scores[:, 0].tolist() == [6, 7, 8, 9, 10, 11]
    assert batches[1].group.tolist() == [0, 0, 0, 1, 1, 1]
    assert batches[0].rows["completion"].to_list()[:2] == ["a0", "a1"]
    assert [batch.scores.tolist() for batch in dump.batches()] == [batch.scores.tolist() for batch in batches]
    assert dump.summary.rollouts == 12


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_line_ends(tmp_path, end):
    dump, _ = whole(lines(tmp_path / "a.jsonl", rows(), end))
    assert (dump.summary.rollouts, dump.summary.skipped) == (12, [])


def test_what_polars_refuses_is_read_line_by_line(tmp_path):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(output=lambda row: f"a{row} \u2028\x85"))
    broken = text.split("\n")[:-1]
    broken[1] = broken[1].replace('"acc": 1.0', '"acc": NaN')
    broken[3] = "no json"
    broken[4] = "[1, 2]"
    broken[5] = broken[5].replace('"acc": 5.0', '"acc": "yes"')
    broken[6] = broken[6].replace("a6", "\\ud800")
    broken[7] = broken[7].replace('"acc": 7.0', '"acc": -Infinity')
    broken[11] = broken[11][:40]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(broken), encoding="utf-8")
    dump, batches = whole(path)
    assert dump.summary.rollouts == 9
    assert dump.summary.missing == {"acc": 3}
    assert dump.summary.skipped == [
        "a.jsonl line 4: no JSON", "a.jsonl line 5: list where an object was expected", "a.jsonl line 12: cut off",
    ]  # fmt: skip
    assert "a.jsonl line 6: 'yes'" in said(dump)
    assert "infinite, counted as missing (a.jsonl line 8)" in said(dump)
    assert batches[1].rows["completion"][0].startswith("�")
    assert batches[0].rows["completion"][0] == "a0 \u2028\x85"


def test_bytes_that_are_no_utf8_are_replaced_and_said(tmp_path):
    path = lines(tmp_path / "a.jsonl", rows())
    path.write_bytes(path.read_bytes().replace(b"a3", b"\xff\xfe"))
    dump, batches = whole(path)
    assert batches[0].rows["completion"][3] == "��"
    assert "line 4" in said(dump)


def test_a_column_that_the_head_did_not_show_is_said(tmp_path, monkeypatch):
    from gdpo.rollouts import head

    monkeypatch.setattr(head, "_BYTES", 1 << 15)
    made = rows(steps=200, groups=4)
    made[1300]["rare"] = 0.5
    dump, _ = whole(lines(tmp_path / "a.jsonl", made))
    assert dump.rewards == ["acc"]
    assert "'rare' first stands in a.jsonl line 1301" in said(dump)


def test_late_columns_in_a_later_part_of_a_large_file_are_found(tmp_path, monkeypatch):
    from gdpo.rollouts import head

    monkeypatch.setattr(head, "_BYTES", 1 << 15)
    made = rows(steps=200, groups=4)
    for row in made[1800:]:
        row["safe"] = 1
    dump, batches = whole(lines(tmp_path / "a.jsonl", made))
    assert dump.rewards == ["acc", "safe"]
    assert dump.summary.missing == {"safe": 1800}
    assert len(batches) == 200


def test_names_of_rewards_are_those_of_all_samples(tmp_path):
    """P14: absent, or not a number, does not apply; whichever sample comes first."""
    infos = [{"acc": 1}, {"score": 1, "acc": 0, "format": 1}, {"acc": "unknown", "format": 0}, {"score": 0, "acc": 1}]
    expected = [[1, np.nan], [0, 1], [np.nan, 0], [1, np.nan]]
    for order in ([0, 1, 2, 3], [1, 0, 2, 3], [2, 3, 1, 0]):
        made = [{"input": "q", "output": f"a{k}", "gts": "", "score": 0.0, "step": 1} | infos[k] for k in order]
        dump, (batch,) = whole(lines(tmp_path / "a.jsonl", made))
        columns = [dump.rewards.index(name) for name in ("acc", "format")]
        np.testing.assert_array_equal(batch.scores[:, columns], np.array(expected)[order])


def test_a_rollout_in_several_rows_counts_once(tmp_path):
    """P15: three segments of one rollout are one rollout."""
    made = [{"group": "q", "rollout": name, "reward": value} for name, value in [*[("a", 1)] * 3, ("b", 0), ("c", 0)]]
    dump, (batch,) = whole(lines(tmp_path / "a.jsonl", made))
    assert batch.rows["rollout"].to_list() == ["a", "b", "c"]
    advantages = gdpo.advantages(batch.scores, batch.group, method="gdpo")
    np.testing.assert_allclose(advantages, [1.15458506, -0.57729253, -0.57729253], atol=1e-6)
    assert "5 rows are 3 rollouts" in said(dump)
    without, _ = whole(lines(tmp_path / "b.jsonl", rows()))
    assert "each row counts as a rollout" in said(without)


def test_segments_join_their_texts(tmp_path):
    made = [
        {"step": 1, "group": 0, "rollout": name, "segment": part, "completion": f"{name}{part}", "length": 2, "reward/a": 1.0}
        for name in "xy" for part in (0, 1)
    ]  # fmt: skip
    _, (batch,) = whole(lines(tmp_path / "a.jsonl", made))
    assert batch.rows["completion"].to_list() == ["x0\nx1", "y0\ny1"]
    assert batch.rows["length"].to_list() == [4, 4]


def test_repetitions_are_dropped_and_counted(tmp_path):
    table(tmp_path / "completions_00001.parquet")
    table(tmp_path / "completions_00002.parquet")
    one = pl.read_parquet(tmp_path / "completions_00001.parquet")
    one.with_columns(step=pl.lit(7), advantage=pl.col("advantage") + 1).write_parquet(
        tmp_path / "completions_00007.parquet"
    )
    pl.concat([one, one]).with_columns(step=pl.lit(9), acc=pl.col("acc") + 1).write_parquet(
        tmp_path / "completions_00009.parquet"
    )
    dump, batches = whole(tmp_path)
    assert [len(batch.scores) for batch in batches] == [4, 4, 4]
    assert (dump.summary.duplicates_dropped, dump.summary.steps) == (8, [1, 7, 9])


def test_a_policy_that_repeats_itself_is_no_repetition(tmp_path):
    path = table(tmp_path / "a.parquet", prompts=["p"] * 4)
    pl.read_parquet(path).with_columns(completion=pl.lit("same"), acc=1.0, advantage=0.0).write_parquet(path)
    dump, _ = whole(path)
    assert (dump.summary.rollouts, dump.summary.duplicates_dropped) == (4, 0)


def test_a_step_in_two_places_gives_two_batches(tmp_path):
    made = rows(steps=1) + [
        row | {"step": step} for step in (1, 2, 3) for row in rows(steps=1, acc=lambda row: row + 0.5)
    ]
    for number, record in enumerate(made):
        record["output"] = f"t{number}"
    resumed = [row | {"step": 0, "output": f"again {n}"} for n, row in enumerate(rows(steps=1))]
    folder = tmp_path / "run"
    folder.mkdir()
    for number in range(4):
        lines(folder / f"{number}.jsonl", made[number * 6 : number * 6 + 6])
    lines(folder / "9.jsonl", resumed)
    dump, batches = whole(folder)
    assert [batch.step for batch in batches] == [0, 1, 2, 3, 0] or [b.step for b in batches] == [0, 1, 2, 0, 3]
    assert "step 0 stands in several places" in said(dump)
    names = [name for batch in batches for name in batch.rows["rollout"]]
    assert len(set(names)) == 30


@pytest.mark.parametrize(
    ("prompts", "sizes"),
    [
        ("ppqq", {2: 2}),
        ("ppppqqrr", {2: 4}),
        ("pppqq", {2: 1, 3: 1}),
        ("pqpqpq", {3: 2}),
        ("ppqqpp", {2: 3}),
        ("pppp", {4: 1}),
        ("pqrs", {1: 4}),
    ],
)
def test_groups_from_prompts(tmp_path, prompts, sizes):
    dump, _ = whole(table(tmp_path / "a.parquet", prompts=list(prompts), acc=np.arange(9.0)))
    assert dump.summary.group_sizes == sizes


def test_overrides(tmp_path):
    path = table(tmp_path / "a.parquet", fmt=[0.5], length=[3, 4, 5, 6], kind=["x", "y"])
    dump, (batch,) = whole(path, rewards=["length", "acc"], group_by="kind", weights={"acc": 0.5})
    assert dump.rewards == ["length", "acc"]
    assert dump.weights == {"length": 1.0, "acc": 0.5}
    assert batch.scores[:, 0].tolist() == [3, 4, 5, 6]
    assert batch.group.tolist() == [0, 1, 0, 1]
    dump, (batch,) = whole(path, format="table")
    assert dump.summary.format == "table"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rewards": ["ac"]}, "did you mean 'acc'"),
        ({"rewards": "acc"}, "a list of columns"),
        ({"rewards": ["completion"]}, "no numbers"),
        ({"group_by": "grp"}, "no column"),
        ({"weights": {"accc": 1}}, "did you mean 'acc'"),
        ({"weights": {"acc": float("nan")}}, "finite"),
        ({"format": "tlr"}, "did you mean 'trl'"),
    ],
)
def test_wrong_overrides(tmp_path, options, message):
    with pytest.raises(Error, match=message):
        whole(table(tmp_path / "a.parquet"), **options)


def test_csv_json_glob_and_gzip(tmp_path):
    frame = pl.read_parquet(table(tmp_path / "t.parquet", steps=3))
    frame.write_csv(tmp_path / "t.csv")
    frame.write_csv(tmp_path / "semi.csv", separator=";")
    (tmp_path / "t.json").write_text(json.dumps(frame.to_dicts(), indent=1))
    (tmp_path / "columns.json").write_text(
        json.dumps({"columns": frame.columns, "data": [list(r) for r in frame.rows()]})
    )
    (tmp_path / "packed").write_bytes(gzip.compress(frame.write_ndjson().encode()))
    expected = [batch.scores.tolist() for batch in whole(tmp_path / "t.parquet")[1]]
    for name in ("t.csv", "semi.csv", "t.json", "columns.json", "packed", "t.pa*t"):
        dump, batches = whole(tmp_path / name)
        assert [batch.scores.tolist() for batch in batches] == expected, name
        assert dump.summary.format == "trl"


def test_a_packed_file_that_ends_in_the_middle_gives_what_it_has(tmp_path):
    made = rows(steps=400, groups=8, output=lambda row: f"{row * 7919 % 10007:x}" * 9)
    data = gzip.compress("".join(json.dumps(row) + "\n" for row in made).encode())
    (tmp_path / "a.gz").write_bytes(data[: len(data) * 3 // 4])
    dump, _ = whole(tmp_path / "a.gz")
    assert 0 < dump.summary.rollouts < len(made)
    assert "cut off" in said(dump)


def test_damaged_and_foreign_files_of_a_folder(tmp_path):
    table(tmp_path / "completions_00001.parquet")
    data = table(tmp_path / "completions_00002.parquet", acc=[3.0]).read_bytes()
    (tmp_path / "completions_00003.parquet").write_bytes(data[: len(data) // 2])
    (tmp_path / "completions_00004.parquet").write_bytes(data[:40] + bytes(len(data) - 80) + data[-40:])
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [{"loss": 1.0, "step": 1}], "step": 3}))
    (tmp_path / "config.json").write_text('{\n "model_type": "llama"\n}')
    (tmp_path / "optimizer.pt").write_bytes(pickle.dumps({}))
    (tmp_path / "README.md").write_text("# a, b")
    dump, _ = whole(tmp_path)
    assert dump.summary.rollouts == 8
    assert any("completions_00003.parquet" in text for text in dump.summary.skipped)
    assert any("completions_00004.parquet" in text for text in dump.summary.skipped)


def test_evaluation_folders_are_left_out(tmp_path):
    for name in ("train", "eval"):
        (tmp_path / name).mkdir()
        lines(tmp_path / name / "1.jsonl", rows(steps=1, acc=lambda row, name=name: row + len(name)))
    dump, batches = whole(tmp_path)
    assert batches[0].scores[0, 0] == 5
    assert "eval" in said(dump)
    assert whole(tmp_path / "eval")[1][0].scores[0, 0] == 4


class Trap:
    def __reduce__(self):
        return exec, ("raise SystemExit('opened')",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "empty"),
        ("a.jsonl", b"\n \n", "empty"),
        ("a.pkl", pickle.dumps(Trap()), "never opened.*weights_only=True"),
        ("dump", pickle.dumps(Trap()), "never opened"),
        ("a.pt", b"PK\x03\x04" + b"\0" * 26 + b"archive/data.pkl", "never opened"),
        ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, "binary file"),
        ("a.parquet", b"PAR1" + b"x" * 99, "without its end"),
        ("a.txt", b"hello", "no table"),
        ("a.jsonl", b'{"a": 1}\n{"a": 2}\n', "no rollouts"),
        ("a.jsonl", b'{"prompt": "p", "completion": "c", "step": 1}\n', "no reward column.*prompt"),
        ("state.json", json.dumps({"log_history": [{"loss": 0.1, "rewards/acc/mean": 0.5, "step": 1}] * 3}), "step means"),
        ("wandb.csv", b'"Step","run - train/rewards/acc/mean","run - train/rewards/acc/mean__MIN"\n1,0.5,0.4\n', "step means"),
        ("a.jsonl", b'{"_step": 1, "_runtime": 3.0, "critic/rewards/mean": 0.2}\n', "step means"),
    ],
)  # fmt: skip
def test_refusals_are_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(Error, match=message) as caught:
        whole(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing", "missing*.jsonl", "folder"])
def test_nothing_there(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(Error, match="were looked for"):
        whole(tmp_path / name)


def test_a_total_only_is_said(tmp_path):
    made = [
        {key: value for key, value in row.items() if key != "acc"} | {"uid": f"u-{n // 3}_{n % 3}_0"}
        for n, row in enumerate(rows())
    ]
    dump, batches = whole(lines(tmp_path / "a.jsonl", made))
    assert (dump.rewards, batches[0].scores.shape) == ([], (6, 0))
    assert batches[0].rows["total"].to_list() == [1.0] * 6
    assert "no per-reward scores in this dump" in said(dump)
    assert "use_v1=False" in said(dump)


texts = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.one_of(st.just(np.nan), st.floats(-1e6, 1e6))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_our_table_comes_back_as_it_was_written(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run") / "rollouts"
    names = data.draw(st.lists(st.text("abcdef_.", min_size=1, max_size=6), min_size=1, max_size=4, unique=True))
    steps = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=4, unique=True))
    written = {}
    for step in sorted(steps):
        count = data.draw(st.integers(1, 6))
        scores = np.array(
            data.draw(
                st.lists(st.lists(numbers, min_size=len(names), max_size=len(names)), min_size=count, max_size=count)
            )
        )
        group = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        completions = data.draw(st.lists(texts, min_size=count, max_size=count))
        frame = rollout_frame(
            step=step, prompts=["p"] * count, completions=completions, lengths=[3] * count, names=names, scores=scores, group=group,
        )  # fmt: skip
        write_frame(
            frame, folder / f"step-{step:06d}.parquet", {"gdpo.objective": "method: gdpo", "gdpo.framework": "trl 1.16"}
        )
        written[step] = scores, group, completions
    dump, batches = whole(folder.parent)
    assert (dump.rewards, dump.framework, dump.settings) == (names, "trl", {"objective": {"method": "gdpo"}})
    assert [batch.step for batch in batches] == dump.summary.steps == sorted(steps)
    for batch in batches:
        scores, group, completions = written[batch.step]
        np.testing.assert_array_equal(batch.scores, scores)
        assert (batch.group[:, None] == batch.group).tolist() == np.equal.outer(group, group).tolist()
        assert batch.rows["completion"].to_list() == completions
        assert batch.rows["rollout"].to_list() == [f"{batch.step}-{row}" for row in range(len(scores))]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["a.jsonl", "a.csv", "a", "a.parquet", "a.json"]))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, name):
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(content)
    with pytest.raises(Error):
        whole(path)


value = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | texts | st.just("1.5"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "score", "step"]), inner, max_size=2)
    ),
    max_leaves=5,
)
KEYS = ["step", "prompt", "completion", "acc", "advantage", "group", "rewards", "input", "output", "score", "traces", "id",
        "content", "group_idx", "traj_idx", "trajectory_metrics", "example_id", "reward", "uid", "rollout", "steps"]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), value, max_size=8), min_size=1, max_size=6))
def test_any_records_are_read_or_refused(tmp_path_factory, records):
    path = lines(tmp_path_factory.mktemp("any") / "a.jsonl", records)
    with contextlib.suppress(Error):
        dump, batches = whole(path)
        assert dump.summary.rollouts == sum(len(batch.scores) for batch in batches)


@pytest.mark.data
@pytest.mark.skipif(
    not (SHARED / "cases" / "dumps").is_dir(), reason="the dumps lie beside a developer's checkout only"
)
def test_every_dump_at_once_is_read_or_refused():
    dump, batches = whole(SHARED / "cases" / "dumps" / "trl")
    assert dump.summary.rollouts == sum(len(batch.scores) for batch in batches) > 0


def test_files_without_steps_are_batches_of_their_own(tmp_path):
    for number in (3, 12):
        made = [
            {key: v for key, v in row.items() if key != "step"} | {"output": f"{number} {n}"}
            for n, row in enumerate(rows(steps=1))
        ]
        lines(tmp_path / f"part{number}.jsonl", made)
    dump, batches = whole(tmp_path)
    assert [batch.step for batch in batches] == dump.summary.steps == [3, 12]
    assert dump.summary.group_sizes == {3: 4}


def test_messages_in_parquet_are_json(tmp_path):
    message = [{"role": "user", "content": 'say "é"'}, {"role": "assistant", "content": "x"}]
    frame = pl.read_parquet(table(tmp_path / "a.parquet")).with_columns(completion=pl.Series([message] * 3 + [None]))
    frame.write_parquet(tmp_path / "a.parquet")
    _, (batch,) = whole(tmp_path / "a.parquet")
    assert json.loads(batch.rows["completion"][0]) == message


def test_nested_lines_read_by_polars_and_one_by_one_agree(tmp_path, monkeypatch):
    from gdpo.rollouts import lines as reading

    swift = [{"step": ["1"] * 4, "prompt": list("ppqq"), "completion": [f"c{n}{k}" for k in range(4)], "acc": [0, 1.0, None, 1],
              "advantages": [0.5, -0.5, 0, 0]} for n in range(2)]  # fmt: skip
    nemo = [{"content": [["p", "a", f"b{row}"]], "rewards": [row / 2], "input_lengths": [3], "token_loss_mask": [[0, row, 1]],
             "advantages": [[7.0, row, 9.0]]} for row in range(4)]  # fmt: skip
    for number, made in enumerate((swift, nemo)):
        folder = tmp_path / str(number)
        folder.mkdir()
        lines(folder / "train_data_step5.jsonl", made)
        used, real = [], reading._one_by_one
        monkeypatch.setattr(reading, "_one_by_one", lambda *given, real=real, used=used: used.append(1) or real(*given))
        fast_dump, fast = whole(folder)
        assert not used
        monkeypatch.setattr(reading, "_by_polars", lambda *given: None)
        slow_dump, slow = whole(folder)
        monkeypatch.undo()
        assert used
        assert fast_dump.summary == slow_dump.summary
        for one, other in zip(fast, slow, strict=True):
            np.testing.assert_array_equal(one.scores, other.scores)
            assert one.rows.equals(other.rows.select(one.rows.columns))


def test_broken_bytes_are_said_once_and_counted(tmp_path):
    rows = [json.dumps({"step": 1, "prompt": str(k // 4), "completion": "caf\u00e9", "r": float(k % 2)}, ensure_ascii=False)
            for k in range(16)]  # fmt: skip
    (tmp_path / "a.jsonl").write_bytes("\n".join(rows).encode("latin-1"))
    dump = open_dump(tmp_path / "a.jsonl")
    batches = list(dump.batches())
    assert len(batches[0].scores) == 16
    said = [note for note in dump.summary.notes if "UTF-8" in note]
    assert said == ["bytes that are no UTF-8 were replaced in 16 lines, first in a.jsonl line 1"]
