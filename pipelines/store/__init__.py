"""`beyondcls store`: looking at feature sets, checking, mending, exchanging, sharing and removing them."""

import typer

from pipelines.store import exchange, gc, look, mend, pull, remove

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at feature sets; check, mend, exchange, share and remove them."
)
app.command("ls")(look.ls)
app.command("info")(look.info)
app.command("du")(look.du)
app.command("verify")(mend.verify)
app.command("repair")(mend.repair)
app.command("pull")(pull.pull)
app.command("push")(pull.push)
app.command("export")(exchange.export)
app.command("import")(exchange.import_)
app.command("rm")(remove.rm)
app.command("gc")(gc.gc)
