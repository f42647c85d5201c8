"""Telling somebody what happened to a store that nobody looks at.

A `Notice` is one event of a served store.  `NoticeLog` writes each as a line, to standard output and to a
file that is rotated; `Teller` sends those that somebody should hear of to webhooks, Slack, e-mail or whatever
else Apprise reaches.  `pulse` keeps the sign of life that the dashboard and `topline status` believe.
"""

from __future__ import annotations

from topline.pipeline.notices.notice import (
    NOTIFY,
    Kind,
    Notice,
    NoticeLog,
    Teller,
    addresses,
    decision_notices,
    disk_notice,
    told,
)
