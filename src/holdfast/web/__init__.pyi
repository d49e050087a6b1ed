# Written by tools/stubs.py from the table of names in the module itself.
from holdfast.web.app import web_app as web_app
