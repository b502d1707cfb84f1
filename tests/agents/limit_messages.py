"""What agents say at a limit of a subscription, word for word, and where each was found.

`program`: read in the program of the version that tests/agents/package.json pins, or said by it against a scripted
service. A number after a name is an issue of that project.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

ZONE = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 4, 14, 12, 0, tzinfo=ZONE)
"""When they are said, and where, in the tests."""


class LimitMessage(NamedTuple):
    agent: str
    found: str
    text: str
    over_at: str = ""
    """When the limit is over, in `ZONE`; empty: it does not say, or it is more than eight days away."""


MESSAGES = (
    LimitMessage(
        "claude",
        "claude-code 77978, program",
        "You've hit your session limit · resets 2:30pm (Pacific/Auckland)",
        "2026-04-15 04:31",
    ),
    LimitMessage(
        "claude", "claude-code 79136", "You've hit your session limit · resets 5:40pm (Europe/Berlin)", "04-14 17:41"
    ),
    LimitMessage("claude", "claude-code 77108", "You've hit your session limit · resets 5pm", "04-14 17:01"),
    LimitMessage("claude", "program", "You've hit your session limit · resets 12:35pm (UTC)", "04-14 14:36"),
    LimitMessage("claude", "program", "You've hit your weekly limit · resets Apr 20, 5:59am", "04-20 06:00"),
    LimitMessage("claude", "program", "You've hit your Opus limit · resets Apr 16 at 3am", "04-16 03:01"),
    LimitMessage("claude", "program", "You've hit your Sonnet limit"),
    LimitMessage("claude", "program", "You've hit your fast limit · resets in 2h 5m", "04-14 14:05"),
    LimitMessage("claude", "program", "You're out of extra usage · resets 3pm (Europe/Berlin)", "04-14 15:01"),
    LimitMessage("claude", "program", "You're out of usage credits"),
    LimitMessage("claude", "program", "You've hit your monthly spend limit."),
    LimitMessage("claude", "claude-code 4208, program", "Credit balance is too low"),
    LimitMessage(
        "claude",
        "claude-code 46277, program",
        "Credit balance too low · Add funds: https://platform.claude.com/settings/billing",
    ),
    LimitMessage(
        "claude",
        "claude-code 54566, its service",
        "API Error: 400 Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to "
        "upgrade or purchase credits.",
    ),
    LimitMessage("claude", "program", "Your org is out of usage · add funds to continue"),
    LimitMessage("claude", "earlier versions", "Claude AI usage limit reached|1776175200", "04-14 16:00"),
    LimitMessage("claude", "earlier versions", "5-hour limit reached ∙ resets 3pm", "04-14 15:01"),
    LimitMessage(
        "claude",
        "its service",
        "You have reached your specified API usage limits. You will regain access on 2026-04-18 at 00:00 UTC.",
        "04-18 02:00",
    ),
    LimitMessage(
        "codex",
        "program",
        "You’ve hit your usage limit. Upgrade to Pro (https://chatgpt.com/explore/pro), visit "
        "https://chatgpt.com/settings/usage to purchase more credits or try again at 12:35 PM.",
        "04-14 12:36",
    ),
    LimitMessage(
        "codex",
        "codex 46937, program",
        "You've hit your usage limit. Upgrade to Pro (https://chatgpt.com/explore/pro), visit "
        "https://chatgpt.com/codex/settings/usage to purchase more credits or try again at Apr\n21st, 2026 2:14 AM.",
        "04-21 02:15",
    ),
    LimitMessage(
        "codex",
        "codex 3899",
        "You've hit your usage limit. Upgrade to Pro (https://openai.com/chatgpt/pricing) or try again in 5 days 22 "
        "hours 11\nminutes.",
        "04-20 10:11",
    ),
    LimitMessage(
        "codex", "codex 3257", "You've hit your usage limit. Try again in 4 days 20 hours 9 minutes.", "04-19 08:09"
    ),
    LimitMessage(
        "codex", "codex 30206", "You have reached your usage limit, or try again after July 3, 2026 at 2:45 PM."
    ),
    LimitMessage(
        "codex", "codex 47305", "You've reached your usage limit. Upgrade your plan or add credits to continue"
    ),
    LimitMessage("codex", "program", "Your workspace is out of credits. Add credits to continue using Codex."),
    LimitMessage(
        "codex", "program", "You hit your spend cap set in your workspace. Increase your spend cap to continue."
    ),
    LimitMessage(
        "gemini",
        "gemini-cli 13004, program",
        "[API Error: You have exhausted your capacity on this model. Your quota will reset after 8h44m7s.]\n"
        "Please wait and try again later. To increase your limits, request a quota increase through AI Studio, or "
        "switch to another /auth method",
        "04-14 20:44",
    ),
    LimitMessage(
        "gemini",
        "gemini-cli 22107",
        "You have exhausted your capacity on this model. Your quota will reset after 0s.",
        "04-14 12:00",
    ),
    LimitMessage(
        "gemini", "gemini-cli 15576, program", "[API Error: You have exhausted your daily quota on this model.]"
    ),
    LimitMessage(
        "gemini",
        "gemini-cli 6962",
        "You exceeded your current quota, please check your plan and billing details. For more information on this "
        "error, head to: https://ai.google.dev/gemini-api/docs/rate-limits.",
    ),
    LimitMessage("gemini", "gemini-cli 1848", "Resource has been exhausted (e.g. check quota)."),
    LimitMessage(
        "opencode", "opencode 42686, program", "Monthly usage limit reached. It will reset in 10 days 19 hours."
    ),
    LimitMessage(
        "opencode",
        "program",
        "5 hour usage limit reached. It will reset in 2 hours 3 minutes. To continue using this model now, enable "
        "usage from your available balance - https://opencode.ai/workspace/w/go",
        "04-14 14:03",
    ),
    LimitMessage("opencode", "program", "Usage limit reached. It will reset in less than a minute.", "04-14 12:01"),
    LimitMessage("opencode", "opencode 50093, program", "Free usage exceeded, subscribe to Go"),
    LimitMessage("opencode", "opencode 47239", "The usage limit has been reached"),
    LimitMessage("opencode", "opencode 35568", "Rate limit exceeded. Please try again later."),
    LimitMessage(
        "opencode",
        "opencode 42114",
        "Insufficient balance. Manage your billing here: https://opencode.ai/workspace/wrk_01/billing",
    ),
    LimitMessage("opencode", "opencode 27593", "status 402 Payment Required"),
    LimitMessage(
        "opencode",
        "opencode 37161",
        "No payment method. Add a payment method here: https://opencode.ai/workspace/wrk_01/billing",
    ),
    LimitMessage(
        "copilot",
        "copilot-cli 2144",
        "Sorry, you've hit a rate limit that restricts the number of Copilot model requests you can make within a "
        "specific time period. Please try again in 2 hours. Please review our Terms of Service "
        "(https://docs.github.com/site-policy/github-terms/github-terms-of-service).",
        "04-14 14:00",
    ),
    LimitMessage("copilot", "copilot-cli 2063", "402 You have no quota (Request ID: 0DAE:25E807:31A9BC6)"),
    LimitMessage(
        "copilot",
        "pi 3643",
        "You have exceeded your premium request allowance. Enable additional paid premium requests to continue using "
        "premium models.",
    ),
    LimitMessage(
        "copilot",
        "copilot-cli 2754",
        "you've hit a rate limit. Please try again in 15 hours 23 minutes.",
        "04-15 03:23",
    ),
    LimitMessage(
        "copilot",
        "copilot-cli 2828",
        "You've reached your weekly rate limit. Please wait for your limit to reset on April 20, 2026 at 2:00 AM or "
        "switch to \nauto model to continue. Learn More (https://docs.github.com/en/copilot/concepts/rate-limits). "
        "(Request ID: \nD0BC:2556F:2EE648C:3A017D8:69E3DE2E)",
        "04-20 02:01",
    ),
    LimitMessage(
        "copilot",
        "copilot-cli 2740",
        "Sorry, you have been rate-limited. Please wait 2 minutes before trying again or consider switching to Auto.",
        "04-14 12:02",
    ),
)

UNKNOWN = (
    "You've reached your Max allowance for today",
    "Usage cap hit. Come back tomorrow.",
    "You have used all of your premium requests for this month",
    "Your plan's included usage has been consumed",
    "insufficient_quota",
    "Insufficient credits",
    "billing hard limit has been reached",
    "usage_limit_reached",
    "You've used 100% of your plan",
    "Daily token allocation exhausted",
)
"""Found nowhere: as they may be said tomorrow."""

OTHERS = (
    "OS file watch limit reached.",
    "EDQUOT: disk quota exceeded, write",
    "Subagent depth limit reached (1).",
    "JavaScript heap memory limit reached",
    "The answer went beyond the output token limit",
    "Reached max session turns for this session.",
    "the tests do not pass",
    "the balance of the account in tests/bank.py is too low by 3",
    "the payment plan is not what test_plan.py expects",
)
"""Limits, but of nothing that anybody is a subscriber to."""
