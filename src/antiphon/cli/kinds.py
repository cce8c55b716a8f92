"""Commands whose words are not read as those of others are."""

from __future__ import annotations

from typing import Any

import typer.core

PLANS = "COLL|PLAN|TABLE"  # what is no command of the group
COMMAND = "antiphon.lab.command"  # where what stands behind -- is kept


class WithoutName(typer.core.TyperGroup):
    """`bench genmodel`, `bench loggp` and `bench micro` are commands; all else is what is to be measured, with its
    options. The help is that of the latter, and names the three."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = [PLANS, *args]
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        inner = self.commands[PLANS]
        return inner.get_help(type(ctx)(inner, parent=ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return (None if name == PLANS else name), command, rest


class Unnamed(typer.core.TyperCommand):
    """The command without a name."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path.strip(), " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        ctx.parent.command.format_commands(ctx.parent, formatter)


class WithCommand(typer.core.TyperCommand):
    """What stands behind -- is a program of the user's, and none of our business."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = args[at + 1 :] if at < len(args) else None
        return super().parse_args(ctx, args[:at])
