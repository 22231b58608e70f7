"""Makes the pictures of the page in docs/figures (needs jaxserve[dev,bench] and a Chromium):

    python -m bench.server.page.pictures [--out docs/figures]

page.png is the page of a server of the demo model under load. page.gif is its pool while the page's
own buttons send requests: four answers to one question, then six texts with the same beginning. A
frame is taken every few steps of the engine, whatever time they need.
"""

from __future__ import annotations

import argparse
import asyncio
import io
from contextlib import suppress
from pathlib import Path

import aiohttp
from PIL import Image
from playwright.async_api import Browser, Page

from bench.server import demo_server
from bench.server.page.browser import chromium
from bench.server.page.load import Load

FLAGS = ("--max-num-seqs", "24", "--max-num-batched-tokens", "256")
POOL = "128MiB"  # 181 blocks
IN_FLIGHT = 22
STEPS_UNDER_LOAD = 120  # while an answer of 256 tokens goes on
FRAMES = ((8, 1), (10, 3)), ((6, 1), (14, 4))  # for each button: (frames, steps between them)
FRAME_MS = 450
CLIP = {"width": 876.0, "height": 800.0}  # as the page's first part is below 900 pixels
LAST_FRAME_MS = 2500
STEP = "() => jaxserve.state.steps.at(-1)?.[0] ?? -1"


async def open_page(browser: Browser, url: str, width: int, height: int) -> Page:
    page = await browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.set_default_timeout(300_000)
    await page.goto(url)
    await page.get_by_text("Connected", exact=True).wait_for()
    await page.wait_for_function("() => jaxserve.state.unknown === 0")
    return page


async def steps_pass(page: Page, steps: int) -> None:
    until = await page.evaluate(STEP) + steps
    await page.wait_for_function(f"until => ({STEP})() >= until", arg=until)


async def animate(page: Page) -> list[Image.Image]:
    """Frames of the pool and of the block tables."""
    frames = []
    shows = page.locator("#shows button")
    for nth, parts in enumerate(FRAMES):
        await shows.nth(nth).click()
        for steps in [steps for count, steps in parts for _ in range(count)]:
            await steps_pass(page, steps)
            top = await page.locator("#pool-summary").bounding_box()
            assert top is not None
            clip = CLIP | {"x": 12.0, "y": top["y"] - 34}
            png = await page.screenshot(clip=clip, full_page=True)  # type: ignore[arg-type]
            frames.append(Image.open(io.BytesIO(png)).convert("RGB"))
    return frames


def save(frames: list[Image.Image], path: Path) -> None:
    # One palette for all frames, so that what stays the same needs no bytes.
    tall = Image.new("RGB", (frames[0].width, frames[0].height * len(frames)))
    for nth, frame in enumerate(frames):
        tall.paste(frame, (0, nth * frame.height))
    palette = tall.quantize(128, dither=Image.Dither.NONE)
    first, *rest = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [FRAME_MS] * len(rest) + [LAST_FRAME_MS]
    first.save(path, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)


async def under_load(page: Page, http: aiohttp.ClientSession, path: Path) -> None:
    """A picture of the page while a question is answered beside other requests."""
    question = page.get_by_label("Your message")
    await question.fill("Explain what a hash table is.")
    await question.press("Enter")
    await page.locator("#running tr.own").wait_for()
    load = asyncio.create_task(Load(http, IN_FLIGHT).run())
    await page.wait_for_function(
        "most => jaxserve.state.steps.length >= most", arg=STEPS_UNDER_LOAD
    )
    await page.screenshot(path=path)
    load.cancel()
    with suppress(asyncio.CancelledError):
        await load


async def make(url: str, out: Path) -> None:
    async with demo_server.session(url) as http, chromium() as browser:
        page = await open_page(browser, url, 900, 1400)
        save(await animate(page), out / "page.gif")
        await page.close()
        await demo_server.until_idle(http)
        page = await open_page(browser, url, 1440, 1850)
        await under_load(page, http, out / "page.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    args = parser.parse_args()
    server = demo_server.start(*FLAGS, "--kv-cache-memory", POOL)
    try:
        asyncio.run(make(server.url, args.out))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
