"""A batch sleeps for the sum of its items' `ms` milliseconds."""

import time


def answer(item):
    return {"id": item["id"], "value": item["value"]}


class Handler:
    def predict(self, inputs, parameters):
        time.sleep(sum(item.get("ms", 0) for item in inputs) / 1000)
        return [answer(item) for item in inputs]
