# On PYTHONPATH during the chat template tests: the embedded Python must not see it.
raise ImportError("the shadow jinja2 was imported")
