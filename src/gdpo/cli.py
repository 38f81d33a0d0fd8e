"""The command line: what, then ``key=value``, then flags. Exit codes: 0 done, 1 findings at or above
--fail-on, 2 bad input, 130 interrupted."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gdpo.core.errors import Error
from gdpo.version import __version__

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Train language models on several rewards at once without letting the rewards blur into one.",
)  # fmt: skip

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="changes to the recipe")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"gdpo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Root command; subcommands do the work."""


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="a recipe (see `gdpo list recipes`), a YAML file, or a run folder")],
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run where it stopped.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the resolved recipe and do nothing.")] = False,
) -> None:
    """Train a model by a recipe: `gdpo train math steps=50 weights.format=0.5`."""
    from gdpo.training import recipe as recipes
    from gdpo.training.run import RunFolder

    folder = Path(recipe) if (Path(recipe) / "run.json").is_file() else None
    if folder is not None:
        if overrides:
            raise Error(f"{overrides[0]!r} cannot change a run that exists; resume {folder} as it is")
        if not (resume or show):
            raise Error(f"{folder} is a run that exists; add --resume to go on with it")
    resolved = recipes.from_run(folder) if folder else recipes.load(recipe, overrides or [])
    if show:
        typer.echo(resolved.to_yaml(), nl=False)
        return
    _need_train_extra()
    if resume:
        run = RunFolder.resume(folder or resolved.folder, None if folder else resolved)
    else:
        run = RunFolder.create(resolved, "gdpo " + shlex.join(sys.argv[1:]))
    _train(resolved, run)


@app.command()
def compare(
    recipe: Annotated[str, typer.Argument(help="a recipe or a YAML file")],
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs side by side; 0: as the cores allow.")] = 0,
) -> None:
    """Run a recipe under several settings and seeds: `gdpo compare math method=grpo,gdpo seed=0..2`.

    A comma or a range makes a sweep. Run again, the command goes on where it stopped.
    """
    from gdpo.training.compare import Sweep, run_sweep

    _need_train_extra()
    sweep = Sweep.parse(recipe, overrides or [])
    failed = run_sweep(sweep, jobs=jobs, command="gdpo " + shlex.join(sys.argv[1:]), say=typer.echo)
    typer.echo(f"{sweep.folder / 'report.html'}")
    if failed:
        raise Error(
            f"{failed} of {len(sweep.runs)} runs failed; see logs/ there, and run the command again to resume them"
        )


@app.command()
def lint(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="FILE.py:FUNCTION ... | RECIPE [KEY=VALUE]...", help="what to check")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Rows to try the rewards on: JSONL, JSON, Parquet or CSV.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    fail_on: Annotated[
        str, typer.Option("--fail-on", metavar="SEVERITY", help="Status 1 from here on: error, warning or note.")
    ] = "error",
) -> None:
    """Check rewards before a run is wasted on them: `gdpo lint my_rewards.py:polite --data rows.jsonl`.

    Rows hold `completion` and `prompt` and the columns that the rewards read; without completions some are made from
    the answers. Rewards run as they are, on hostile texts too.
    """
    from gdpo.linting import run_lint

    status = run_lint(targets or [], data, as_json=as_json, fail_on=fail_on)
    if status:
        raise typer.Exit(status)


@app.command()
def audit(
    dump: Annotated[str, typer.Argument(help="a file, a folder, a glob, or a run")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="what the dump does not say, and the steps"),
    ] = None,
    rewards: Annotated[str | None, typer.Option("--rewards", help="Reward columns, with commas between.")] = None,
    group_by: Annotated[str | None, typer.Option("--group-by", help="The column of the groups.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="Instead of the one recognised.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write an offline page, too.")] = None,
    fail_on: Annotated[
        str | None, typer.Option("--fail-on", metavar="SEVERITY", help="Status 1 from here on: error, warning or note.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="DUMP", help="Say what changed from that dump to this one.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on while the training writes; Ctrl-C ends it.")] = False,
) -> None:
    """Say what the rewards of a dump really teach: `gdpo audit outputs/completions`.

    Keys: method=, primary=, steps=1..4, weights.NAME=, gates.NAME=, bounds.NAME=[0,1], options.NAME=, thresholds.NAME=;
    against.KEY= is about the dump of --against, which may be the same one: steps=9..16 against.steps=1..8.
    """
    from gdpo.auditing import run_audit

    if follow:
        from gdpo.following import run_follow

        if against is not None:
            raise Error("--follow and --against do not go together: audit the run when it has ended")
        status = run_follow(
            dump, changes or [], rewards=rewards, group_by=group_by, format=format_, as_json=as_json, html=html,
            fail_on=fail_on,
        )  # fmt: skip
    else:
        status = run_audit(
            dump, changes or [], rewards=rewards, group_by=group_by, format=format_, as_json=as_json, html=html,
            fail_on=fail_on, against=against,
        )  # fmt: skip
    if status:
        raise typer.Exit(status)


Rewards = Annotated[str | None, typer.Option("--rewards", help="Reward columns, with commas between.")]
GroupBy = Annotated[str | None, typer.Option("--group-by", help="The column of the groups.")]
Format = Annotated[str | None, typer.Option("--format", help="Instead of the one recognised.")]


@app.command()
def replay(
    dump: Annotated[str, typer.Argument(help="a file, a folder, a glob, or a run")],
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="method=, weights.NAME=, gates.NAME=")],
    rewards: Rewards = None,
    group_by: GroupBy = None,
    format_: Format = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    used: Annotated[str | None, typer.Option("--used", metavar="METHOD", help="The method that the run used.")] = None,
) -> None:
    """The same rollouts under other settings: `gdpo replay DUMP method=gdpo,dvao weights.format=0.3`."""
    from gdpo.auditing import run_replay

    run_replay(dump, changes, as_json=as_json, used=used, rewards=rewards, group_by=group_by, format=format_)


@app.command()
def explain(
    dump: Annotated[str, typer.Argument(help="a file, a folder, a glob, or a run")],
    rollout: Annotated[str, typer.Argument(help="its id, as `gdpo audit` names it")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    rewards: Rewards = None,
    group_by: GroupBy = None,
    format_: Format = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Why one rollout got its advantage, reward by reward: `gdpo explain DUMP 3-17`."""
    from gdpo.auditing import run_explain

    run_explain(dump, rollout, changes or [], as_json=as_json, rewards=rewards, group_by=group_by, format=format_)


@app.command()
def doctor(
    framework: Annotated[str | None, typer.Argument(help="trl, verl or nemo-rl; or a config alone")] = None,
    config: Annotated[str | None, typer.Argument(help="the run's YAML, or the script that launches it")] = None,
    workers: Annotated[bool, typer.Option("--workers/--no-workers", help="Look into a Ray worker, too.")] = True,
) -> None:
    """Say whether gdpo is active in a framework's run, and what to set: `gdpo doctor verl run.yaml`."""
    from gdpo.doctor import run_doctor

    status = run_doctor(framework, config, workers=workers, say=typer.echo)
    if status:
        raise typer.Exit(status)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="recipes, methods or rewards")] = "",
) -> None:
    """List what there is: recipes, methods, rewards."""
    from gdpo.listing import LISTS, print_list

    if what and what not in LISTS:
        from gdpo.core.inputs import nearest

        raise Error(f"there is no list of {what!r}{nearest(what, LISTS)}")
    for name in [what] if what else list(LISTS):
        print_list(name)


def _train(resolved: Any, run: Any) -> None:
    from gdpo.report.terminal import LiveView
    from gdpo.training import online

    view = LiveView(resolved.steps, list(resolved.objective.rewards), str(run.path))
    try:
        with run.locked(), view:
            online.train(resolved, run, view)
    except Error:
        run.discard_if_unused()
        raise
    except (online.Interrupted, KeyboardInterrupt):
        typer.echo(f"stopped; go on with: gdpo train {shlex.quote(str(run.path))} --resume", err=True)
        raise typer.Exit(130) from None


def _need_train_extra() -> None:
    import importlib.util

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Error(
            "gdpo train is one process; for several GPUs use gdpo.adapters.trl.GRPOTrainer in a TRL script under "
            "accelerate launch"
        )
    for module in ("torch", "transformers", "trl", "datasets", "accelerate"):
        if importlib.util.find_spec(module) is None:
            raise Error(f'{module} is not installed, and training needs it: pip install "gdpo[train]"')


def main() -> None:
    """Entry point: errors become one line on stderr and status 2."""
    try:
        status = app(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)  # click returns the status of typer.Exit here
    except Error as error:
        print(f"gdpo: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("gdpo: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        # click's own usage errors carry their message and status; anything else is a bug and keeps its traceback.
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            print(f"gdpo: {error.format_message()} (see gdpo --help)", file=sys.stderr)
            sys.exit(2)
        raise


if __name__ == "__main__":
    main()
