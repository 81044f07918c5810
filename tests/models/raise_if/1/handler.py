"""A value of 666 makes the whole call raise."""


def answer(item):
    return {"id": item["id"], "value": item["value"]}


class Handler:
    def predict(self, inputs, parameters):
        if any(item["value"] == 666 for item in inputs):
            raise RuntimeError("value 666")
        return [answer(item) for item in inputs]
