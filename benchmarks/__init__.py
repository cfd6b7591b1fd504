import store  # noqa: F401, first of all: it says how threads of torch wait
