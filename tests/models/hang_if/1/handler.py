"""A value of 668 never comes back."""

import time


def answer(item):
    return {"id": item["id"], "value": item["value"]}


class Handler:
    def predict(self, inputs, parameters):
        while any(item["value"] == 668 for item in inputs):
            time.sleep(3600)
        return [answer(item) for item in inputs]
