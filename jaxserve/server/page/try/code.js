// A request as code to copy.

function shell(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function python(value, indent = "") {
  const deeper = `${indent}    `;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return value.length ? `[\n${value.map((each) => `${deeper}${python(each, deeper)},\n`).join("")}${indent}]` : "[]";
  if (typeof value === "object") {
    return `{\n${Object.entries(value).map(([name, each]) => `${deeper}${JSON.stringify(name)}: ${python(each, deeper)},\n`).join("")}${indent}}`;
  }
  return JSON.stringify(value);
}

// Args: base: the server's address; body: of the request; keyed: whether the server needs a key.
export function codeOf(language, base, body, keyed) {
  const url = `${base}v1/chat/completions`;
  if (language === "curl") {
    const key = keyed ? ` \\\n  -H "Authorization: Bearer $JAXSERVE_API_KEY"` : "";
    return `curl ${shell(url)} -H 'Content-Type: application/json'${key} \\\n  -d ${shell(JSON.stringify(body, null, 2))}`;
  }
  if (language === "python") {
    const key = keyed ? `os.environ["JAXSERVE_API_KEY"]` : `"none"`;
    const own = python(body).split("\n").slice(1, -1).map((line) => line.replace(/^ {4}"(\w+)": /, "    $1=")).join("\n");
    return `${keyed ? "import os\n\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(`${base}v1`)}, api_key=${key})\nstream = client.chat.completions.create(\n${own}\n)\nfor chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)`;
  }
  const headers = { "Content-Type": "application/json" };
  const key = keyed ? `,\n    Authorization: \`Bearer \${process.env.JAXSERVE_API_KEY}\`` : "";
  return `const response = await fetch(${JSON.stringify(url)}, {\n  method: "POST",\n  headers: {\n    "Content-Type": ${JSON.stringify(headers["Content-Type"])}${key},\n  },\n  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),\n});\nfor await (const piece of response.body.pipeThrough(new TextDecoderStream())) {\n  console.log(piece);\n}`;
}
