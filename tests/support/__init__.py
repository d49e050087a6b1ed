"""Code that several tests share: servers, fakes of the outside world, and checks."""
