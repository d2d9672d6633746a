"""The demo's results for a person: what was asked, the best answer, its score, what became of it."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from schemas.messages import Outcome, Reply
from tools.demo.queries import Query
from tools.demo.tally import Answered

QUERY_CHARS, ANSWER_CHARS = 38, 52
STYLES = {
    Outcome.OK: "green",
    Outcome.EXPIRED: "yellow",
    Outcome.CANCELLED: "yellow",
    Outcome.REJECTED: "magenta",
    Outcome.INVALID: "magenta",
    Outcome.FAILED: "bold red",
}


def make_table(answers: list[Answered]) -> Table:
    """One line a request, in the order of the file."""
    table = Table(title="60 requests through Kafka", header_style="bold", expand=False)
    for name in ("query", "best title, intent or department"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    table.add_column("score", justify="right")
    table.add_column("outcome")
    table.add_column("latency", justify="right")
    for each in answers:
        answer, score = best_answer(each.query, each.reply)
        outcome = each.outcome
        shown = f"[{STYLES[outcome]}]{outcome.value}[/]" if outcome else "[bold red]no reply[/]"
        latency = f"{each.latency_ms:,.0f} ms" if each.latency_ms is not None else ""
        cells = (cut(each.query.text, QUERY_CHARS), cut(answer, ANSWER_CHARS))
        table.add_row(*map(escape, cells), score, shown, latency)
    return table


def best_answer(query: Query, reply: Reply | None) -> tuple[str, str]:
    """(best title, intent or department, its score), or (why there is none, "")."""
    if reply is None:
        return "", ""
    if reply.outcome is not Outcome.OK:
        return (reply.error.message if reply.error else ""), ""
    if query.pipeline == "relevance":
        scores = [float(row["scores"]["yes"]) for row in reply.results]
        best = scores.index(max(scores))
        return query.samples[best]["title"], f"{scores[best]:.2f}"
    row = reply.results[0]
    if query.pipeline == "recall":
        best = row["beams"][0]
        return ", ".join(best["item_ids"]), f"{best['score']:.2f}"
    return str(row["label"]), f"{row['scores'][row['label']]:.2f}"


def cut(text: str, chars: int) -> str:
    """At most so many characters, the last an ellipsis where something was cut."""
    return text if len(text) <= chars else text[: chars - 1].rstrip() + "…"
