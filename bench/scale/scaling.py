"""The scaling of a Fargate service, as AWS describes target tracking."""

from math import ceil, inf

from bench.scale.deployment import Service

_SCALE_OUT_MINUTES, _SCALE_IN_MINUTES = 3, 15  # of target tracking's own alarms


class Scaler:
    """Target tracking on the backlog of each task, with the cooldowns of the template."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.desired = service.min_tasks
        self._above = self._below = 0
        self._changed_at = -inf

    def note(self, visible: int, tasks: int, now: float) -> None:
        """Take the metric of one minute, and change the number of tasks if it is time."""
        service, backlog = self._service, visible / max(1, tasks)
        self._above = self._above + 1 if backlog > service.backlog_per_task else 0
        self._below = self._below + 1 if backlog < 0.9 * service.backlog_per_task else 0
        wanted = ceil(max(1, tasks) * backlog / service.backlog_per_task)
        if self._above >= _SCALE_OUT_MINUTES and self._waited(service.scale_out_seconds, now):
            self._change(max(self.desired, wanted), now)
        elif self._below >= _SCALE_IN_MINUTES and self._waited(service.scale_in_seconds, now):
            self._change(min(self.desired, wanted), now)

    def _waited(self, seconds: float, now: float) -> bool:
        return now - self._changed_at >= seconds

    def _change(self, tasks: int, now: float) -> None:
        tasks = max(self._service.min_tasks, min(self._service.max_tasks, tasks))
        if tasks != self.desired:
            self.desired, self._changed_at = tasks, now
