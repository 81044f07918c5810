"""The answer is the input's id and value."""


def answer(item):
    return {"id": item["id"], "value": item["value"]}


class Handler:
    def predict(self, inputs, parameters):
        return [answer(item) for item in inputs]
