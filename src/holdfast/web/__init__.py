"""The web console: `holdfast web`, or `web_app` in an application of your own.

    app = FastAPI()
    app.mount("/holdfast", web_app(["sqlite:work.db/enrich"]))

It needs the extra `web`. See docs/how-to/watch-in-a-browser.md.
"""

from holdfast._lazy import lazy_exports

__all__, __getattr__ = lazy_exports(__name__, {"web.app": "web_app"})
