"""The sweeper in Lambda: `holdfast.lambdas.sweeping.handler`, for a schedule.

Each event of any kind causes one sweep. Staged messages without a trigger get one, and
messages that were not answered for days are parked. The response contains the counts.
"""

from holdfast.chat.lambdas import ChatRuntime

handler = ChatRuntime().sweep
