"""The checks of `holdfast doctor --stack`: does a deployed stack fit the code?

`aws_reader` makes the calls, `components` finds the functions and services that run Holdfast
and what they use, and the other modules have the checks of one kind of resource. Every call
reads, and none changes anything.
"""
