"""The template of `report.html`: no scripts, nothing loaded from elsewhere, light and dark."""

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ run.name }} · {{ policy }}</title>
<style>
:root { --page: #f6f7f9; --card: {{ light.background }}; --text: {{ light.text }};
        --line: {{ light.grid }}; --quiet: #5c6670; --accent: #0072B2; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0d1117; --card: {{ dark.background }}; --text: {{ dark.text }};
          --line: {{ dark.grid }}; --quiet: #97a1ac; --accent: #56B4E9; --bad: #ff8a80; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.4rem 0 .8rem; font-size: 1.2rem; }
.facts { display: flex; flex-wrap: wrap; gap: .35rem 1.4rem; margin: .6rem 0 0; padding: 0;
         list-style: none; color: var(--quiet); }
.facts b { color: var(--text); font-weight: 600; }
.kind { display: inline-block; margin-bottom: .6rem; padding: .1rem .7rem; border-radius: 1rem;
        border: 1px solid var(--accent); color: var(--accent); font-size: .85rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .9rem; text-align: left; vertical-align: baseline; }
tr + tr > *, thead + tbody tr:first-child > * { border-top: 1px solid var(--line); }
th { font-weight: 600; }
thead th { color: var(--quiet); font-size: .85rem; }
td.value { font-weight: 600; color: var(--accent); white-space: nowrap; }
td.number, th.number { text-align: right; }
td.quiet { color: var(--quiet); font-size: .9rem; }
.unmet { color: var(--bad); font-weight: 700; }
.pictures { display: grid; gap: 1rem;
            grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; padding: 1rem; }
figure h3 { margin: 0; font-size: 1rem; }
figcaption { margin: 0 0 .6rem; color: var(--quiet); font-size: .9rem; }
figure img { display: block; width: 100%; height: auto; }
details { margin-top: 1rem; padding: .8rem 1rem; }
summary { cursor: pointer; font-weight: 600; }
pre { margin: .8rem 0 0; overflow-x: auto; font-size: .85rem; line-height: 1.4; }
@media (max-width: 40rem) {
  main { padding-top: 1.2rem; }
  .figures tr { display: block; padding: .5rem 0; }
  .figures tr > * { display: block; padding: .05rem .9rem; border: 0 !important; }
  .figures tr + tr { border-top: 1px solid var(--line); }
}
</style>
</head>
<body>
<main>
<header>
  <span class="kind">{{ "simulated run" if run.simulated else "real run" }}</span>
  <h1>{{ run.name }}</h1>
  <ul class="facts">
    <li>policy <b>{{ policy }}</b></li>
    <li>seed <b>{{ run.seed }}</b></li>
    <li>{{ "virtual" if run.simulated else "wall" }} time <b>{{ wall }}</b></li>
    <li>config <b>{{ run.config_hash }}</b></li>
  </ul>
</header>

<h2>The figures that matter</h2>
<div class="card"><table class="figures">
{% for name, value, note in figures %}
  <tr><th scope="row">{{ name }}</th><td class="value">{{ value }}</td>
    <td class="quiet">{{ note }}</td></tr>
{% endfor %}
</table></div>

{% if claims %}
<h2>Claims</h2>
<div class="card wide"><table>
  <thead><tr><th>claim</th><th>baseline</th><th class="number">measured</th>
    <th class="number">range</th><th class="number">seeds</th><th>aim</th><th>met</th>
    <th>source</th></tr></thead>
  <tbody>
{% for claim in claims %}
  <tr><th scope="row">{{ claim.name }}</th><td>{{ claim.baseline }}</td>
    <td class="number">{{ "not measured" if claim.value is none else "%.4g" % claim.value }}</td>
    <td class="number">
      {{ "" if claim.low is none else "%.4g to %.4g" % (claim.low, claim.high) }}</td>
    <td class="number">{{ claim.n }}</td><td>{{ claim.aim }}</td>
    <td>{% if claim.met %}yes{% else %}<span class="unmet">NO</span>{% endif %}</td>
    <td class="quiet">{{ claim.source }}</td></tr>
{% endfor %}
  </tbody>
</table></div>
{% endif %}

<h2>Pictures</h2>
<div class="pictures">
{% for picture in pictures %}
  <figure class="card">
    <h3>{{ picture.title }}</h3>
    <figcaption>{{ picture.caption }}</figcaption>
    <picture>
      <source media="(prefers-color-scheme: dark)" srcset="{{ picture.dark }}">
      <img src="{{ picture.light }}" alt="{{ picture.title }}: {{ picture.caption }}">
    </picture>
  </figure>
{% endfor %}
</div>

<h2>Where sampled tokens went</h2>
<div class="card wide"><table>
  <thead><tr><th>model-owned tokens of training rollouts</th><th class="number">tokens</th>
    <th class="number">share</th></tr></thead>
  <tbody>
{% for name, n_tokens, share in waterfall %}
  <tr><th scope="row">{{ name }}</th><td class="number">{{ n_tokens }}</td>
    <td class="number">{{ share }}</td></tr>
{% endfor %}
  </tbody>
</table></div>

<details class="card"><summary>summary.json</summary><pre>{{ summary }}</pre></details>
<details class="card"><summary>Resolved config</summary><pre>{{ config }}</pre></details>
</main>
</body>
</html>
"""
