"""`beyondcls store`: looking at feature sets, checking, exchanging, sharing and removing them."""

import typer

from pipelines.store import look, move, remove

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at feature sets; check, exchange, share and remove them."
)
app.command("ls")(look.ls)
app.command("info")(look.info)
app.command("verify")(look.verify)
app.command("pull")(move.pull)
app.command("push")(move.push)
app.command("export")(move.export)
app.command("import")(move.import_)
app.command("rm")(remove.rm)
app.command("gc")(remove.gc)
