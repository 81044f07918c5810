"""y is x."""


class Handler:
    def predict(self, inputs, parameters):
        return {"y": inputs["x"]}
